"""The plans of random days: layouts that every card of theirs can have, and what is no plan."""

import random
from dataclasses import dataclass

from tests.campaign.episode import Plan, Step

BOARDS = {
    "h100-80gb:1": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "h100-80gb:2": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "h200:1": ("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
}
# How many there are of each of the five, in layouts that every card of seven slices can have.
LAYOUTS = (
    (7, 0, 0, 0, 0),
    (2, 0, 0, 0, 0),
    (0, 3, 0, 0, 0),
    (1, 3, 0, 0, 0),
    (0, 0, 2, 0, 0),
    (1, 0, 1, 0, 0),
    (3, 0, 0, 1, 0),
    (0, 0, 1, 1, 0),
    (0, 1, 1, 0, 0),
    (0, 0, 0, 0, 1),
)
BAD_PLANS = (
    "version: v1\ngpus:\n- {devices: all, mig: {9g.90gb: 1}}\n",
    "version: v1\ngpus:\n- {devices: all, mig: {7g.80gb: 2, 7g.40gb: 2}}\n",
    "version: v1\ngpus:\n- {devices: [12], mig: disabled}\n",
    "version: v1\ngpus: [\n",
    "",
    "version: v9\n",
)

Seconds = tuple[float, ...]
LONG = (45.0,)  # so long that a plan is carried out where nothing is wrong
ANY = (0.0, 0.02, 0.1, 0.5, 2.0, 5.0, 10.0, 45.0)  # often too few for the agent to come to rest


@dataclass(frozen=True, slots=True)
class Day:
    """What all scenes of one day have in common."""

    rng: random.Random
    boards: str
    gpus: int
    has_mps: bool

    def change(self, seconds: Seconds = ANY) -> Step:
        return Step(self._plan(), self.rng.choice(seconds))

    def gpu(self) -> int:
        return self.rng.randrange(self.gpus)

    def _plan(self) -> Plan:
        if not self.has_mps:
            return Plan(tuple(self._layout() for _ in range(self.gpus)))
        shared = tuple(gpu for gpu in range(self.gpus) if self.rng.random() < 0.7)
        return Plan(self.few(), shared)

    def few(self) -> tuple[dict[str, int], ...]:
        """Layouts of few instances, since each daemon is a process."""
        profiles = BOARDS[self.boards]
        few: list[dict[str, int]] = [{}, {profiles[2]: 2}, {profiles[4]: 1}]
        return tuple(self.rng.choice(few) for _ in range(self.gpus))

    def _layout(self) -> dict[str, int]:
        if self.rng.random() < 0.1:
            return {}
        counts = zip(BOARDS[self.boards], self.rng.choice(LAYOUTS), strict=True)
        return {profile: count for profile, count in counts if count}
