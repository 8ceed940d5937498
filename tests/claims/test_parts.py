"""What claims make of a GPU: their own part with its sharing, and nothing else."""

from nodeagent.claims.model import ClaimedDevice, ClaimRecord
from nodeagent.claims.parts import to_prepare, to_release, with_intent
from nodeagent.plan import steps
from nodeagent.plan.observed import Gpu, HealthLimits, Placement
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import layout_of, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.structs import replace
from tests.claims.samples import mig_device, mig_result, record, whole_device
from tests.plan.cards import card, with_instances
from tests.plan.daemons import CLIENT, A, B, daemon, give, without_mig

H100 = card("h100-80gb")
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def claim(device: ClaimedDevice) -> ClaimRecord:
    return record(replace(device, gpu=H100.uuid))


def kinds(*taken: steps.Step) -> list[type[steps.Step]]:
    return [type(step) for step in taken]


WHOLE = whole_device()
SLICE = mig_device(before=(), mps=A)  # 1g.10gb at 4
OTHER = claim(mig_device(placement=Placement(6, 1), mps=B))


def test_a_slice_with_its_daemon_beside_another() -> None:
    """Instance, compute mode, daemon, and back; the other's daemon has clients all along."""
    with_other = give(with_instances(H100, [("1g.10gb", 6)]), daemon(B, CLIENT))
    made = plan_gpu(to_prepare(claim(SLICE), with_other, [OTHER]), with_other)
    assert kinds(*made.steps) == [steps.CreateGpuInstance, steps.SetComputeMode, steps.StartMps]
    both = give(
        with_instances(H100, [("1g.10gb", 4), ("1g.10gb", 6)]), daemon(A), daemon(B, CLIENT)
    )
    assert plan_gpu(to_prepare(claim(SLICE), both, [OTHER]), both).verdict is Verdict.IN_SYNC
    gone = plan_gpu(to_release(claim(SLICE), both, [OTHER]), both)
    assert kinds(*gone.steps) == [steps.StopMps, steps.DestroyGpuInstance]
    assert {step.placement for step in gone.steps if isinstance(step, steps.StopMps)} == {
        Placement(4, 1)
    }
    used = give(with_instances(H100, [("1g.10gb", 4)]), daemon(A, CLIENT))
    kept = plan_gpu(to_release(claim(SLICE), used, []), used)
    assert kept.verdict is Verdict.BLOCKED
    assert "pid 815 (train) of pod ml/trainer" in kept.problems[0].message


def sick(gpu: Gpu) -> Gpu:
    return replace(gpu, health_limits=HealthLimits(whole=True, why="XID 62", remedy="reset it"))


def test_a_sick_gpu_loses_what_a_claim_had() -> None:
    """A reset, which mends it, waits for that. Nothing new comes: no claim's device, nor what a
    failed release has destroyed already.
    """
    there = sick(with_instances(H100, [("1g.10gb", 4), ("1g.10gb", 6)]))
    slice_ = claim(mig_device(before=()))
    goal = to_release(slice_, there, [claim(mig_device(placement=Placement(6, 1)))])
    gone = plan_gpu(goal, there)
    assert kinds(*gone.steps) == [steps.DestroyGpuInstance]
    for again in (layout_of(there, goal), to_prepare(slice_, gone.after, [])):
        refused = plan_gpu(again, gone.after)
        assert [problem.code for problem in refused.problems] == [Code.GPU_UNHEALTHY]
    served = sick(without_mig(H100, mps=daemon(A)))
    gone = plan_gpu(to_release(claim(replace(WHOLE, mps=A)), served, []), served)
    assert kinds(*gone.steps) == [steps.StopMps]


def test_a_place_that_two_claims_have() -> None:
    """Which must not be: no release takes what may be the other's. An administrator only looks."""
    there = give(with_instances(H100, [("1g.10gb", 4)]), daemon(A))
    second = replace(claim(SLICE), uid="2", name="two")
    assert plan_gpu(to_release(claim(SLICE), there, [second]), there).verdict is Verdict.IN_SYNC
    admin = claim(replace(WHOLE, result=mig_result(device="gpu", admin_access=True)))
    gone = plan_gpu(to_release(claim(SLICE), there, [admin]), there)
    assert kinds(*gone.steps) == [steps.StopMps, steps.DestroyGpuInstance]


def test_a_whole_gpu_with_a_daemon_or_turns() -> None:
    """They come with the claim, and what was set before comes back with its end."""
    bare = without_mig(H100, time_slice=TimeSlice.DEFAULT)
    served = replace(WHOLE, mps=A)
    made = plan_gpu(to_prepare(claim(served), bare, []), bare)
    assert kinds(*made.steps) == [steps.SetComputeMode, steps.StartMps]
    gone = plan_gpu(to_release(claim(served), made.after, []), made.after)
    assert kinds(*gone.steps) == [steps.StopMps, steps.SetComputeMode]
    turns = replace(WHOLE, result=mig_result(device="gpu", configuration=TimeSlice.LONG))
    made = plan_gpu(to_prepare(claim(turns), bare, []), bare)
    assert kinds(*made.steps) == [steps.SetTimeSlice]
    gone = plan_gpu(to_release(claim(turns), made.after, []), made.after)
    assert gone.after.time_slice is TimeSlice.DEFAULT
    by_turns = claim(replace(turns, shared=True))  # one of them must not set it for all
    assert plan_gpu(to_prepare(by_turns, bare, []), bare).steps == ()


def test_what_is_only_looked_at_stays_as_it_is() -> None:
    """The plan's daemon on a GPU that an administrator's claim has; and on one that is out of MIG
    mode by now, of which another claim had a part.
    """
    planned: Gpu = without_mig(
        H100, mps=daemon(A), compute_mode=EXCLUSIVE, earlier_mode=ComputeMode.DEFAULT
    )
    admin = claim(replace(WHOLE, result=mig_result(device="gpu", admin_access=True)))
    parts = give(with_instances(H100, [("1g.10gb", 4)]), daemon(A))
    for gpu in (planned, parts):
        for goal in (to_prepare(admin, gpu, []), to_release(admin, gpu, [])):
            assert plan_gpu(goal, gpu).verdict is Verdict.IN_SYNC
    assert plan_gpu(to_release(claim(SLICE), planned, []), planned).verdict is Verdict.IN_SYNC


def test_instances_of_one_gpu_say_nothing_of_another() -> None:
    """Ids recur: another claim's share of a MIG device on GPU-2, which is gone, was made as 1."""
    there = with_instances(H100, [("1g.10gb", 4)])
    device = mig_device(gpu="GPU-2", shared=True)
    other = record(replace(device, before=(), instance=there.instances[0].id, uuid="MIG-2"))
    mine = record(device)
    assert with_intent(mine, there, mine.boot_id, [other]) == mine
