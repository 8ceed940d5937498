"""What can be read of one claim and its GPU, and the decision that follows."""

from typing import Any

from nodeagent.claims.model import Allocated, ClaimState, FileState
from nodeagent.claims.upkeep.reconciliation import ClaimAction, Decision, Snapshot, reconcile
from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.structs import replace
from tests.claims.samples import GPU, UID, mig_device, mig_result, record

PLACE = Placement(4, 1)
BUSY = Usage((User(4711, "python"),))
NOT_KNOWN = Usage(known=False, reason="the driver did not say")
OURS = Allocated("team", "trainer", "pod-1", mig_result().key)
THEIRS = Allocated("other", "claim", "pod-2", mig_result().key)


def instance(
    number: int = 7, profile: str = "1g.10gb", placement: Placement = PLACE, usage: Usage = IDLE
) -> GpuInstance:
    compute = ComputeInstance(0, profile, 1, "MIG-7", usage=usage)
    return GpuInstance(number, 19, profile, placement, (compute,))


def gpu(*instances: GpuInstance, **changes: Any) -> Gpu:
    return replace(Gpu(0, GPU, mig=MigMode(True, True), instances=instances), **changes)


def decide(snapshot: Snapshot, uid: str = UID) -> Decision:
    return reconcile(snapshot)[uid]


def left(why: str, code: Code = Code.IN_USE) -> Decision:
    """The claim is left as it is, which is not as it should be."""
    return Decision(
        ClaimAction.LEAVE, Problem.of(code, "claimKept", claim="claim team/trainer", why=why)
    )


def snapshot(*gpus: Gpu, **known: Any) -> Snapshot:
    """Of a claim that is ready and in order, but for what is given."""
    usual: dict[str, Any] = {
        "records": (record(mig_device(instance=7, uuid="MIG-7")),),
        "claims": {UID: ClaimState.SAME},
        "files": {UID: FileState.SAME},
        "allocations": (),
    }
    return Snapshot("boot-1", ObservedNode(gpus or (gpu(instance()),)), **{**usual, **known})
