"""What is decided for each claim, for every combination of what can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from nodeagent.claims.model import Allocated, ClaimState, FileState, RecordPhase
from nodeagent.claims.upkeep.reconciliation import (
    ClaimAction,
    Snapshot,
    foreign_instances,
)
from nodeagent.plan.observed import Access, Placement
from nodeagent.plan.problems import Code
from nodeagent.plan.users import Usage
from nodeagent.structs import replace
from tests.claims.samples import UID, mig_device, record
from tests.claims.snapshots import (
    BUSY,
    NOT_KNOWN,
    OURS,
    PLACE,
    THEIRS,
    decide,
    gpu,
    instance,
    snapshot,
)

HARDWARE = {
    "its own": [instance()],
    "one from before": [instance(3)],
    "another": [instance(3, "2g.20gb", Placement(4, 2))],
    "elsewhere": [instance(3, placement=Placement(0, 1))],
    "nothing": [],
}


@dataclass(frozen=True, slots=True)
class Case:
    """One combination."""

    phase: RecordPhase
    rebooted: bool
    hardware: str  # of HARDWARE, or "unknown"
    usage: Usage
    allocations: tuple[Allocated, ...] | None
    claim: ClaimState
    file: FileState
    fixed: bool

    def snapshot(self) -> Snapshot:
        """As it would be read. `before` are ids that are not made again in the same place."""
        ids: dict[str, Any] = (
            {} if self.phase is RecordPhase.INTENT else {"instance": 7, "uuid": "MIG-7"}
        )
        if self.fixed:
            ids = {"uuid": "MIG-7"}
        device = mig_device(before=((3, PLACE), (7, Placement(0, 4))), fixed=self.fixed, **ids)
        there = [
            replace(i, compute=tuple(replace(c, usage=self.usage) for c in i.compute))
            for i in HARDWARE.get(self.hardware, ())
        ]
        lost = (
            {"access": Access.LOST, "access_reason": "lost"} if self.hardware == "unknown" else {}
        )
        return snapshot(
            gpu(*there, **lost),
            records=(
                record(device, phase=self.phase, boot_id="boot-0" if self.rebooted else "boot-1"),
            ),
            claims={UID: self.claim},
            files={UID: self.file},
            allocations=self.allocations,
        )

    @property
    def over(self) -> bool:
        ended = {ClaimState.GONE, ClaimState.DEALLOCATED, ClaimState.OTHER_RESULTS}
        return self.phase is RecordPhase.RELEASING or self.claim in ended

    @property
    def is_there(self) -> bool:
        """Whether the claim's own instance, or the plan's that it has, is there."""
        if self.fixed:
            return self.hardware in {"its own", "one from before"}
        return self.hardware == "its own" and not self.rebooted

    @property
    def in_use(self) -> bool:
        if self.allocations is None or self.allocations:
            return True
        return self.is_there and self.usage.in_use

    @property
    def foreign(self) -> bool:
        """Whether there is an instance that belongs to no claim."""
        return bool(HARDWARE.get(self.hardware)) and not self.is_there

    @property
    def expected(self) -> ClaimAction:
        """What is done, by the rules as they are written down."""
        if self.hardware == "unknown":
            return ClaimAction.LEAVE
        if self.over:
            return ClaimAction.LEAVE if self.in_use else ClaimAction.RELEASE
        if not self.is_there and self.hardware not in {"nothing", "elsewhere"}:
            return ClaimAction.LEAVE  # another instance is in the way
        if self.phase is not RecordPhase.READY:
            was_ready = self.file is not FileState.MISSING or OURS in (self.allocations or ())
            return ClaimAction.REPAIR if was_ready else ClaimAction.LEAVE
        if not self.is_there:  # a fixed one is for the plan to make
            return ClaimAction.LEAVE if self.fixed else ClaimAction.REPAIR
        same = self.file is FileState.SAME and not self.rebooted
        return ClaimAction.LEAVE if same else ClaimAction.REPAIR

    @property
    def problem(self) -> Code | None:
        """Of a claim that is left."""
        if self.hardware == "unknown":
            return Code.GPU_UNKNOWN
        fine = self.phase is RecordPhase.READY and self.is_there and not self.over
        return None if fine else Code.IN_USE


def cases() -> Iterator[Case]:
    """All there are."""
    yield from (
        Case(*values)
        for values in product(
            RecordPhase,
            (False, True),
            (*HARDWARE, "unknown"),
            (Usage(), BUSY, NOT_KNOWN),
            (None, (), (OURS,), (THEIRS,)),
            ClaimState,
            FileState,
            (False, True),
        )
    )


def test_every_combination() -> None:
    """The decision is the one that the rules name: only a claim that is over, and of which nothing
    has users, is released.
    """
    count = 0
    for case in cases():
        count += 1
        snapshot = case.snapshot()
        found = decide(snapshot)
        assert found.action is case.expected, (case, found)
        assert len(list(foreign_instances(snapshot))) == case.foreign, case
        code = found.problem and found.problem.code
        assert code == (case.problem if found.action is ClaimAction.LEAVE else None), case
    assert count == 4 * 2 * 6 * 3 * 4 * 5 * 3 * 2
