"""When a GPU that failed is tried again, and what counts as drift."""

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.pacing import Backoff
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled, MigEnabled
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import GpuOutcome, StepReport, StepResult
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.plan_update import PlanText
from nodeagent.reconcile.work_queue import WorkQueue, undisturbing
from nodeagent.structs import replace
from tests.plan.cards import card, wanted, with_instances
from tests.plan.daemons import A, whole, without_mig

EMPTY = card("h100-80gb")
GPU = with_instances(EMPTY, [("3g.40gb", 0)])
DESIRED = wanted(EMPTY, [("1g.10gb", 7)])
PROBLEM = Problem(code=Code.STEP_FAILED, message="it failed")


def make(first: float = 10, limit: float = 60, *, mend: bool = True) -> WorkQueue:
    """A queue without chance."""
    return WorkQueue(Backoff(first, limit), mend=mend)


def evaluated(gpu: Gpu, desired: DesiredGpu = DESIRED) -> PlanEvaluation:
    node = DesiredNode({gpu.uuid: desired})
    return PlanEvaluation(plan(node, ObservedNode((gpu,))), desired=node)


def fail(queue: WorkQueue, now: float, *problems: Problem) -> None:
    """An attempt at GPU that left it as it was."""
    evaluation = evaluated(GPU)
    (todo,) = evaluation.gpus
    report = StepReport(todo.steps[0], StepResult.FAILED)
    queue.learn(GpuOutcome(todo, (report,), GPU, problems or (PROBLEM,)), todo, evaluation, now)


def may_try(queue: WorkQueue, gpu: Gpu, now: float, desired: DesiredGpu = DESIRED) -> bool:
    return bool(queue.choose(evaluated(gpu, desired), now))


def test_the_same_is_not_tried_before_its_time() -> None:
    queue, now = make(), 0.0
    assert may_try(queue, GPU, now)
    assert queue.next_retry(evaluated(GPU)) is None
    for wait in (10, 20, 40, 60, 60):
        fail(queue, now)
        assert not may_try(queue, GPU, now + wait - 1)
        assert queue.next_retry(evaluated(GPU)) == now + wait
        now += wait
        assert may_try(queue, GPU, now)


def test_what_is_due_and_kept_from_being_done_wakes_nothing() -> None:
    """While a hook objects a retry in the past would be the next round without any pause."""
    queue = make()
    fail(queue, 0)
    assert may_try(queue, GPU, 11)
    assert queue.next_retry(evaluated(GPU)) is None


def test_new_ids_are_no_new_situation() -> None:
    """A layout that was restored has new UUIDs; that alone is no reason to try at once."""
    queue = make()
    fail(queue, 0)
    (instance,) = GPU.instances
    device = replace(instance.compute[0], uuid="MIG-another", id=5)
    again = replace(GPU, instances=(replace(instance, id=77, compute=(device,)),))
    assert not may_try(queue, again, 1)


def test_another_layout_or_plan_is_tried_at_once() -> None:
    queue = make()
    fail(queue, 0)
    assert may_try(queue, EMPTY, 1)
    assert may_try(queue, GPU, 1, wanted(EMPTY, [("1g.10gb", 6)]))
    queue.observe(replace(evaluated(GPU), accepted=PlanText(b"")))
    assert may_try(queue, GPU, 1)


def test_success_begins_anew() -> None:
    queue = make()
    for _ in range(3):
        fail(queue, 0)
    done = evaluated(with_instances(EMPTY, [("1g.10gb", start) for start in range(7)]))
    queue.observe(done)
    assert queue.problems(done.gpus[0]) == ()
    fail(queue, 0)
    assert queue.next_retry(evaluated(GPU)) == 10


def test_a_blocked_gpu_keeps_only_what_it_was_left_with() -> None:
    left = Problem(code=Code.NOT_RESTORED, message="it now has no instances")
    queue = make()
    fail(queue, 0, PROBLEM, left)
    blocked = evaluated(replace(GPU, usage=Usage((User(4711),))))
    queue.observe(blocked)
    assert queue.problems(blocked.gpus[0]) == (*blocked.gpus[0].problems, left)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_waiting_times_stay_within_bounds(failures: int, chance: float) -> None:
    wait = Backoff(1, 300, spread=0.25, jitter=lambda: chance).after(failures)
    assert 0.75 <= wait <= 300


ON = Gpu(0, "GPU-0", mig=MigMode(current=True, pending=True))
OFF = replace(ON, mig=MigMode(current=False, pending=False))
LOST = replace(OFF, access=Access.LOST)
WANTED = DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]")
REWORDED = DesiredGpu(MigEnabled("gpus[1].mig"), "gpus[1]")


def observe(queue: WorkQueue, gpu: Gpu, desired: DesiredGpu = WANTED) -> tuple[Gpu, ...]:
    """Show it a GPU; what has drifted."""
    return queue.observe(evaluated(gpu, desired))


def test_another_plan_is_no_drift() -> None:
    queue = make(mend=False)
    observe(queue, ON)
    assert observe(queue, OFF, REWORDED) == ()
    observe(queue, ON)
    observe(queue, OFF)
    observe(queue, OFF, REWORDED)
    assert queue.problems(evaluated(OFF, WANTED).gpus[0]) == ()
    observe(queue, OFF, DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]"))
    assert observe(queue, ON) == ()


def test_a_gpu_that_does_not_answer_has_not_drifted() -> None:
    queue = make()
    observe(queue, ON)
    assert observe(queue, LOST) == ()
    assert observe(queue, OFF) == (OFF,)


def test_a_daemon_waits_for_the_retry_on_another_of_its_gpus() -> None:
    first, second = (without_mig(replace(EMPTY, uuid=f"GPU-{index}")) for index in range(2))
    goal = whole(replace(A, devices=("GPU-0", "GPU-1")))
    node = DesiredNode({"GPU-0": goal, "GPU-1": goal})
    evaluation = PlanEvaluation(plan(node, ObservedNode((first, second))), desired=node)
    one, other = evaluation.gpus
    queue = make()
    failed = StepReport(other.steps[0], StepResult.FAILED)
    queue.learn(GpuOutcome(other, (failed,), second, (PROBLEM,)), other, evaluation, 0.0)
    assert queue.choose(evaluation, 5.0) == ()
    assert queue.choose(evaluation, 10.0) == (one, other)


def test_a_daemon_waits_for_the_preparation_of_another_of_its_gpus() -> None:
    first, third = (without_mig(replace(EMPTY, uuid=f"GPU-{index}")) for index in (0, 2))
    second = replace(GPU, uuid="GPU-1")
    both, off = replace(A, devices=("GPU-0", "GPU-1")), MigDisabled("m")
    goals = {"GPU-0": both, "GPU-1": both, "GPU-2": A}
    node = DesiredNode({uuid: replace(whole(mps), mig=off) for uuid, mps in goals.items()})
    todo = plan(node, ObservedNode((first, second, third)))
    assert [gpu.changes_devices for gpu in todo.gpus] == [False, True, False]
    assert [gpu.before for gpu in undisturbing(todo).gpus] == [third]
