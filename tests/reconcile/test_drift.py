"""When a difference is drift and when it is not."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigEnabled
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.planner import plan
from nodeagent.reconcile.drift import Drift

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
