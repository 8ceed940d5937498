"""Compares what the agent says of its node, at the moment when it does, with what is so there."""

from dataclasses import dataclass
from pathlib import Path

from nodeagent.simulation import SimulatedNode
from tests.campaign import invariants, processes, truth
from tests.campaign.clock import CLOCK
from tests.campaign.episode import WORKING, Plan
from tests.campaign.invariants import Violation
from tests.campaign.library import Border

IN_SYNC = "InSync"
_CERTAIN = 40.0  # seconds after a change from outside in which a round may have begun before it
_STALE = 60.0  # seconds after a change from outside after which what was said before it is untrue
_NOTICED = 2.0  # seconds after which a new plan was certainly read
# Codes of NVML after which the GPU still answers: UNKNOWN, INSUFFICIENT_RESOURCES, MEMORY,
# OPERATING_SYSTEM, NO_PERMISSION.
_PASSING = {999, 23, 20, 17, 4}


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of the agent that nothing from outside came in between, and the GPUs before it."""

    began: float
    gpus: list[truth.Gpu]


class Witness:
    """`wanted`: the plan in force, None while that is not certain. `changed`: when another than the
    agent changed the cards or the plan last. `in_sync_at`: when the agent reported that all is so,
    and it was. `state_kept`: whether all that the agent wrote down for its next life is as it wrote
    it. `unhealthy`: whether the agent may hold a GPU for unhealthy. `others_came`: whether another
    than the agent changed the layout of a GPU, or reset it. `spoiled`: when a daemon or a file was
    tampered with last.
    """

    def __init__(self, node: SimulatedNode, border: Border, folder: Path) -> None:
        self.violations: list[Violation] = []
        self.wanted: Plan | None = None
        self.state_kept = True
        self.unhealthy = False
        self.others_came = False
        self.changed = CLOCK.now
        self.phase = ""
        self.in_sync_at: float | None = None
        self._work: _Work | None = None
        self.spoiled = -_STALE
        self._daemons: dict[str, list[int]] | None = None  # when all was so last
        self._node = node
        self._border = border
        self._folder = folder

    def touch(self) -> None:
        """Something that the agent has to find out by itself was changed just now."""
        self.changed = CLOCK.now
        self.in_sync_at = None
        self._work = self._daemons = None

    def spoil(self) -> None:
        self.touch()
        self.spoiled = CLOCK.now

    def begin_life(self) -> None:
        self.phase = ""
        self._work = None

    def published(self, phase: str) -> None:
        """The agent says so of its node at this moment."""
        if self._border.dead:
            return
        before, self.phase = self.phase, phase
        work, self._work = self._work, None
        if phase == WORKING:
            self._work = work if before == WORKING else self._begin()
        elif work is not None:
            self._judge_work(work)
        if phase != IN_SYNC:
            self.in_sync_at = None
        elif self.wanted is not None:
            certain = CLOCK.now - self.changed > _CERTAIN
            if work is not None:
                certain = certain or work.began - self.changed > _NOTICED
            self._judge_claim(certain=certain)

    def look(self) -> None:
        """What was said and holds no more has been taken back by now."""
        if self.phase == IN_SYNC and self.wanted is not None:
            self._judge_claim(certain=CLOCK.now - self.changed > _STALE)

    def differences(self) -> list[str]:
        assert self.wanted is not None
        return truth.differences(self._node, self._folder, self.wanted, modes_kept=self.state_kept)

    def violate(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    def _begin(self) -> _Work:
        self._border.begin_work()
        return _Work(CLOCK.now, truth.gpus(self._node))

    def _judge_claim(self, *, certain: bool) -> None:
        wrong = self.differences()
        if not wrong:
            self.in_sync_at = CLOCK.now if self.in_sync_at is None else self.in_sync_at
            self._judge_daemons()
        elif certain:
            self.violate(invariants.NOT_SO, "; ".join(wrong))

    def _judge_daemons(self) -> None:
        """One that was well when all was so is not replaced: it may have clients."""
        if self.wanted is None or not self.wanted.mps or self._border.is_hindered:
            return
        if CLOCK.now - self.spoiled < _STALE:  # one that is not well any more is to be replaced
            return
        before, self._daemons = self._daemons, processes.daemons(self._folder)
        if before is not None and before != self._daemons:
            self.violate(invariants.REPLACED, f"{before} are now {self._daemons}")

    def _judge_work(self, work: _Work) -> None:
        """A GPU on which one change failed is what it was before, if it is not as planned."""
        if self.unhealthy or self.wanted is None or self._node.faults or self._border.is_hindered:
            return
        for index, (was, now) in enumerate(zip(work.gpus, truth.gpus(self._node), strict=True)):
            codes = self._border.failures.get(index, [])
            if len(codes) != 1 or codes[0] not in _PASSING or was.other:
                continue
            used = self._node.cards[index].state.processes
            if not (used or now.has_layout_of(was) or now.is_as(self.wanted.layouts[index])):
                self.violate(invariants.HALF, f"GPU {index} was {was} and is {now}")
