"""What is decided for each claim: the rules by name, and for every combination of facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.model import Allocated, ClaimedDevice, ClaimState, FileState, RecordPhase
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.upkeep.reconciliation import (
    ClaimAction,
    Decision,
    Snapshot,
    foreign_instances,
    reconcile,
)
from nodeagent.plan.observed import (
    Access,
    DeviceDaemon,
    HealthLimits,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.problems import Code
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.claims.samples import (
    GPU,
    POOL,
    UID,
    mig_device,
    mig_result,
    record,
    share_of_gpu,
    whole_device,
)
from tests.claims.snapshots import (
    BUSY,
    NOT_KNOWN,
    OURS,
    PLACE,
    THEIRS,
    decide,
    gpu,
    instance,
    left,
    snapshot,
)
from tests.plan.daemons import A, B

LEAVE, REPAIR, RELEASE = map(Decision, ClaimAction)


def _code(found: Decision) -> str | None:
    return found.problem.code if found.problem else None


# --- other devices --------------------------------------------------------------------------------


def of(*devices: ClaimedDevice, **changes: Any) -> dict[str, Any]:
    return {"records": (record(*devices, **changes),)}


OFF = MigMode(False, False)


def test_a_pod_that_has_two_shares_of_a_gpu() -> None:
    """A process in it may be on either of them."""
    share = share_of_gpu()
    both = (
        replace(OURS, key=share.result.key),
        Allocated("team", "second", "pod-1", (POOL, "gpu", "share-2")),
    )
    client = User(5, namespace="team", pod="pod-1")
    releasing = of(share, phase=RecordPhase.RELEASING)
    there = gpu(mig=OFF, usage=Usage((client,)))
    assert decide(snapshot(there, allocations=both, **releasing)).action is ClaimAction.LEAVE


def test_a_monitor_does_not_hold_up_a_release() -> None:
    """It has the device as an administrator; the process of any pod does hold it up."""
    device = mig_device(instance=7, uuid="MIG-7")
    monitor = mig_device(result=mig_result(admin_access=True))
    records = (record(device), record(monitor, uid="2", namespace="other", name="claim"))
    gone: dict[str, Any] = {"records": records, "claims": {UID: ClaimState.GONE}}
    assert decide(snapshot(allocations=(THEIRS,), **gone)) == RELEASE
    two = (THEIRS, replace(THEIRS, claim="another"))
    assert decide(snapshot(allocations=two, **gone)).action is ClaimAction.LEAVE
    used = gpu(instance(usage=BUSY))
    assert decide(snapshot(used, allocations=(THEIRS,), **gone)).action is ClaimAction.LEAVE


def test_what_an_administrator_has() -> None:
    """Nothing is made or destroyed for it, and who else is on the device does not matter."""
    result = mig_result(admin_access=True)
    admin = of(mig_device(result=result, instance=7))
    gone = {"claims": {UID: ClaimState.GONE}}
    found = decide(snapshot(gpu(instance(usage=BUSY)), **gone, **admin))
    assert found == RELEASE
    assert decide(snapshot(gpu(), **admin)).action is ClaimAction.LEAVE
    in_mig_mode = snapshot(gpu(instance(3)), **of(whole_device(admin_access=True)))
    assert decide(in_mig_mode) == LEAVE


@pytest.mark.parametrize(
    ("daemon", "expected"),
    [
        (DeviceDaemon(A, "Ready"), LEAVE),
        (None, REPAIR),
        (DeviceDaemon(B, "Ready"), REPAIR),
        (DeviceDaemon(A, "Backoff"), REPAIR),
    ],
)
def test_its_mps_daemon(daemon: DeviceDaemon | None, expected: Decision) -> None:
    """On a MIG device and on a GPU as a whole: it has to be as the record has it, and Ready."""
    [compute] = instance().compute
    served = replace(instance(), compute=(replace(compute, mps=daemon),))
    device = mig_device(instance=7, uuid="MIG-7", mps=A)
    assert decide(snapshot(gpu(served), **of(device))) == expected
    assert (
        decide(snapshot(gpu(mig=OFF, mps=daemon), **of(replace(whole_device(), mps=A)))) == expected
    )


def test_several_devices() -> None:
    second = mig_device(placement=Placement(5, 1), before=())
    intent = of(mig_device(), second, phase=RecordPhase.INTENT)
    there = instance(8, placement=Placement(5, 1))
    unfinished = snapshot(gpu(there), files={}, **intent)
    assert decide(unfinished) == left("it was not finished; the kubelet retries")
    assert list(foreign_instances(unfinished)) == []
    ready = of(mig_device(instance=7), replace(second, instance=8))
    assert decide(snapshot(gpu(there), **ready)) == REPAIR
    first = mig_device(instance=7, uuid="MIG-7")
    anew = of(first, replace(second, instance=8, uuid="MIG-8"))
    assert decide(snapshot(gpu(instance(), there), **anew)) == REPAIR
    lost = replace(second, gpu="GPU-0")
    found = decide(snapshot(**of(mig_device(instance=7), lost)))
    assert found == left("the driver does not list GPU-0", Code.GPU_UNKNOWN)


def test_a_card_that_was_taken_out() -> None:
    """After a restart nothing of it is left to be released, unless one that is silent may be it."""
    other = replace(gpu(), uuid="GPU-0")
    gone: dict[str, Any] = {"claims": {UID: ClaimState.GONE}}
    restarted = of(mig_device(instance=7), boot_id="boot-0")
    assert decide(snapshot(other, **gone, **restarted)) == RELEASE
    silent = replace(other, uuid="", access=Access.UNKNOWN)
    assert _code(decide(snapshot(silent, **gone, **restarted))) is Code.GPU_UNKNOWN
    assert _code(decide(snapshot(other, silent, **gone, **restarted))) is Code.GPU_UNKNOWN
    lost = replace(silent, access=Access.LOST)
    assert decide(snapshot(other, lost, **gone, **restarted)) == RELEASE
    hangs = gpu(access=Access.UNKNOWN)
    assert _code(decide(snapshot(hangs, **gone, **restarted))) is Code.GPU_UNKNOWN
    off_the_bus = replace(hangs, health_limits=HealthLimits(gone=True))
    assert decide(snapshot(off_the_bus, **gone, **restarted)) == RELEASE
    assert _code(decide(snapshot(other, **gone))) is Code.GPU_UNKNOWN
    assert (
        _code(decide(replace(snapshot(**gone, **restarted), node=ObservedNode())))
        is Code.GPU_UNKNOWN
    )


# --- several records ------------------------------------------------------------------------------


def test_a_record_that_cannot_be_read() -> None:
    path = Path("/var/lib/nodeagent/claims/2.json")
    foreign = instance(3, placement=Placement(0, 1))
    there = snapshot(gpu(instance(), foreign))
    [problem] = foreign_instances(there)
    assert problem.message.startswith("GPU 0 has GPU instance 3 (1g.10gb at 0:1), which belongs to")
    for gpus, held in ((None, True), (frozenset({GPU}), True), (frozenset({"GPU-0"}), False)):
        broken = replace(there, unreadable=(UnreadableRecord(path, "2", "damaged", gpus),))
        assert reconcile(broken) == {UID: LEAVE}
        assert list(foreign_instances(broken)) == ([] if held else [problem])


def test_instances_of_a_plan() -> None:
    """Are not foreign, and neither is anything known of a GPU that does not answer."""
    planned = instance(3, placement=Placement(0, 1))
    known = frozenset({(GPU, planned.placement)})
    assert list(foreign_instances(snapshot(gpu(instance(), planned), planned=known))) == []
    lost = gpu(planned, access=Access.LOST)
    assert list(foreign_instances(snapshot(lost, records=()))) == []


# --- every combination ----------------------------------------------------------------------------


HARDWARE = {
    "its own": [instance()],
    "one from before": [instance(3)],
    "another": [instance(3, "2g.20gb", Placement(4, 2))],
    "elsewhere": [instance(3, placement=Placement(0, 1))],
    "nothing": [],
}


@dataclass(frozen=True, slots=True)
class Case:
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
    def gone_with_reboot(self) -> bool:
        """What it had on a GPU that is lost since."""
        return self.over and self.rebooted

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
        return bool(HARDWARE.get(self.hardware)) and not self.is_there

    @property
    def expected(self) -> ClaimAction:
        """What is done, by the rules as they are written down."""
        if self.hardware == "unknown" and not self.gone_with_reboot:
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
        if self.hardware == "unknown" and not self.gone_with_reboot:
            return Code.GPU_UNKNOWN
        fine = self.phase is RecordPhase.READY and self.is_there and not self.over
        return None if fine else Code.IN_USE


def cases() -> Iterator[Case]:
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
    """As the rules name it: only a claim that is over, and that nothing uses, is released."""
    count = 0
    for case in cases():
        count += 1
        snapshot = case.snapshot()
        found = decide(snapshot)
        assert found.action is case.expected, (case, found)
        assert len(list(foreign_instances(snapshot))) == case.foreign, case
        code = found.problem and found.problem.code
        assert code == (case.problem if found.action is ClaimAction.LEAVE else None), case
    assert count == 3 * 2 * 6 * 3 * 4 * 5 * 3 * 2
