"""When a GPU that failed is tried again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backoff import Backoff
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigEnabled
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
    Usage,
    User,
)
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.work_queue import Drift, Retries

DESIRED = DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]")
PROBLEM = Problem(Code.STEP_FAILED, "it failed")


def gpu(uuid: str = "MIG-1", *users: User) -> Gpu:
    """A GPU with one instance."""
    device = ComputeInstance(0, "3g.40gb", 3, uuid, usage=Usage(users))
    instance = GpuInstance(1, 9, "3g.40gb", Placement(0, 4), (device,))
    return Gpu(0, "GPU-0", mig=MigMode(current=True, pending=True), instances=(instance,))


def make(first: float = 10, limit: float = 60) -> Retries:
    """Retries without chance."""
    return Retries(Backoff(first, limit))


def test_nothing_failed_yet() -> None:
    """A GPU without failures may be tried."""
    assert make().may_try(gpu(), DESIRED, now=0)


def test_the_same_is_not_tried_before_its_time() -> None:
    """Waiting times double from failure to failure, up to the limit."""
    retries = make()
    now = 0.0
    for wait in (10, 20, 40, 60, 60):
        retries.failed(gpu(), DESIRED, [PROBLEM], now)
        assert not retries.may_try(gpu(), DESIRED, now + wait - 1)
        assert retries.next_retry(["GPU-0"]) == now + wait
        now += wait
        assert retries.may_try(gpu(), DESIRED, now)


def test_new_ids_and_users_are_no_new_situation() -> None:
    """A layout that was restored has new UUIDs; that alone is no reason to try at once."""
    retries = make()
    retries.failed(gpu(), DESIRED, [PROBLEM], 0)
    assert not retries.may_try(gpu("MIG-2", User(4711)), DESIRED, 1)


def test_another_layout_or_plan_is_tried_at_once() -> None:
    """When something that matters differs, there is hope."""
    retries = make()
    retries.failed(gpu(), DESIRED, [PROBLEM], 0)
    assert retries.may_try(replace(gpu(), instances=()), DESIRED, 1)
    assert retries.may_try(gpu(), replace(DESIRED, mig=None), 1)
    retries.forget_all()
    assert retries.may_try(gpu(), DESIRED, 1)


def test_success_begins_anew() -> None:
    """After a success the next failure waits as the first did."""
    retries = make()
    for _ in range(3):
        retries.failed(gpu(), DESIRED, [PROBLEM], 0)
    retries.settled("GPU-0")
    assert retries.problems("GPU-0") == ()
    retries.failed(gpu(), DESIRED, [PROBLEM], 0)
    assert retries.next_retry(["GPU-0"]) == 10


def test_a_blocked_gpu_keeps_only_what_it_was_left_with() -> None:
    """Waiting for a user replaces the failure, but not the fact that a layout is gone."""
    left = Problem(Code.NOT_RESTORED, "it now has no instances")
    retries = make()
    retries.failed(gpu(), DESIRED, [PROBLEM, left], 0)
    retries.blocked("GPU-0")
    assert retries.problems("GPU-0") == (left,)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_waiting_times_stay_within_bounds(failures: int, chance: float) -> None:
    """Chance shortens by at most a quarter, and no number of failures overflows."""
    wait = Backoff(1, 300, spread=0.25, jitter=lambda: chance).after(failures)
    assert 0.75 <= wait <= 300


ON = Gpu(0, "GPU-0", mig=MigMode(current=True, pending=True))
OFF = replace(ON, mig=MigMode(current=False, pending=False))
LOST = replace(OFF, access=Access.LOST)
WANTED = DesiredNode({"GPU-0": DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]")})
REWORDED = DesiredNode({"GPU-0": DesiredGpu(MigEnabled("gpus[1].mig"), "gpus[1]")})


def look(drift: Drift, gpu: Gpu, wanted: DesiredNode = WANTED) -> tuple[Gpu, ...]:
    """Show it a GPU."""
    made: NodePlan = plan(wanted, ObservedNode((gpu,)))
    return drift.look(wanted, made)


def test_what_never_was_in_sync_does_not_drift() -> None:
    """At the start, a GPU that differs simply has to be changed."""
    assert look(Drift(), OFF) == ()


def test_told_once_until_it_is_back() -> None:
    """The same drift is one event; a second one after mending is another."""
    drift = Drift()
    assert look(drift, ON) == ()
    assert look(drift, OFF) == (OFF,)
    assert look(drift, OFF) == ()
    assert drift.has("GPU-0")
    look(drift, ON)
    assert not drift.has("GPU-0")
    assert look(drift, OFF) == (OFF,)


def test_another_plan_is_no_drift() -> None:
    """When it is the plan that changed, nobody else did anything."""
    drift = Drift()
    look(drift, ON)
    assert look(drift, OFF, REWORDED) == ()


def test_a_new_plan_ends_the_drift() -> None:
    """Drift is from a plan; under another one the GPU has to be changed like any other."""
    drift = Drift()
    look(drift, ON)
    look(drift, OFF)
    look(drift, OFF, REWORDED)
    assert not drift.has("GPU-0")


def test_a_gpu_that_does_not_answer_has_not_drifted() -> None:
    """Nothing is known of it; when it answers again, it is compared with what was so."""
    drift = Drift()
    look(drift, ON)
    assert look(drift, LOST) == ()
    assert look(drift, OFF) == (OFF,)
