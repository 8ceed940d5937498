"""How long GPUs and slices were held and by whom, and how long they were used: what cost and fair
share need.

Time passes between two observations; it counts for those who held something when it began, and as
used to the share that the GPU or slice was active meanwhile. Nothing is known of a gap that is too
long, so it counts for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose time it is: a pod's, or where there is none a container's (by its id), a systemd
    unit's or a user's (by number). What is not known is empty.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """A device that a holder has.

    `gpus` is how much of a GPU the device is (1 for a whole one), `slices` how many memory slices
    it has (0 for a whole GPU), each already divided among those who share it. `active` is the part
    of the time since the last observation in which it worked (0 to 1); None: not known.
    """

    device: str
    holder: Holder
    gpus: float
    slices: float = 0.0
    active: float | None = None


@dataclass(slots=True)
class Held:
    """Seconds: of GPUs and of slices, held and used. `used` is a floor where activity is unknown.

    `last` is when the holder last held something.
    """

    gpu_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    slice_seconds: float = 0.0
    slice_seconds_used: float = 0.0
    last: float = 0.0


class HeldTime:
    """Adds up, observation by observation.

    Times are seconds of a clock that does not jump. A holder is forgotten `keep` seconds after it
    let go, so that its last values are still scraped; a gap above `longest_gap` does not count.
    """

    def __init__(self, *, longest_gap: float = 60.0, keep: float = 600.0) -> None:
        self._longest_gap = longest_gap
        self._keep = keep
        self._held: dict[Holder, Held] = {}
        self._holds: dict[tuple[str, Holder], Hold] = {}
        self._since: float | None = None

    @property
    def held(self) -> Mapping[Holder, Held]:
        """What each holder has come to."""
        return self._held

    def observe(self, now: float, holds: Iterable[Hold]) -> None:
        """Who holds what at `now`."""
        current = {(hold.device, hold.holder): hold for hold in holds}
        passed = now - self._since if self._since is not None else 0.0
        if 0.0 < passed <= self._longest_gap:
            for key, hold in self._holds.items():
                self._add(hold, passed, current.get(key))
        self._holds, self._since = current, now
        for _, holder in current:
            self._held.setdefault(holder, Held()).last = now
        gone = [holder for holder, held in self._held.items() if now - held.last > self._keep]
        for holder in gone:
            del self._held[holder]

    def _add(self, hold: Hold, passed: float, now: Hold | None) -> None:
        """`now` is the same hold as it is after that time; None when it ended."""
        held = self._held.setdefault(hold.holder, Held())
        active = now.active if now is not None and now.active is not None else 0.0
        used = passed * min(max(active, 0.0), 1.0)
        held.gpu_seconds += passed * hold.gpus
        held.slice_seconds += passed * hold.slices
        held.gpu_seconds_used += used * hold.gpus
        held.slice_seconds_used += used * hold.slices
