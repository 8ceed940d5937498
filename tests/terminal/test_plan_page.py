"""Pages of plans, beyond what is recorded of every board and state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import StartMps
from nodeagent.structs import replace
from nodeagent.terminal.page import plain_text
from nodeagent.terminal.plan_page import outcome_page, plan_page
from tests.plan.daemons import A

if TYPE_CHECKING:
    from tests.terminal.conftest import Gpus


def _page(*gpus: Gpu) -> str:
    plans = tuple(map(GpuPlan.in_sync, gpus))
    return plain_text(plan_page(NodePlan(Verdict.IN_SYNC, plans), 80))


def test_different_models_are_never_shown_as_one(gpus: Gpus) -> None:
    """The same picture of another card keeps that card's name."""
    page = _page(gpus.gpu(), replace(gpus.gpu(index=1), name="NVIDIA B200"))
    assert "GPU 0  NVIDIA H100 80GB HBM3" in page
    assert "GPU 1  NVIDIA B200" in page


def test_half_made_instances_are_called_so(gpus: Gpus) -> None:
    """A GPU instance without compute instance is no device, and says so."""
    assert "3g.40gb half made" in _page(gpus.gpu(gpus.instance(1, "3g.40gb", 0, 4, parts=0)))


def test_a_daemon_that_did_not_start_is_not_passed_over(gpus: Gpus) -> None:
    """The GPUs are as they should be and nothing is left to plan, but it is no success."""
    gpu = gpus.off()
    start = StartMps(gpu.uuid, gpu.uuid, A, "asked for")
    planned = NodePlan(Verdict.APPLICABLE, (GpuPlan(gpu, Verdict.APPLICABLE, (start,), gpu),))
    reported = Problem(
        code=Code.MPS,
        message="GPU 0: could not start MPS: it ended at once",
        remedy="look at its log",
    )
    report = StepReport(start, StepResult.FAILED, 0.5, "it ended at once")
    outcome = NodeOutcome(planned, (GpuOutcome(planned.gpus[0], (report,), gpu, (reported,)),))
    rest = NodePlan(Verdict.IN_SYNC, (GpuPlan.in_sync(gpu),))
    done = NodeOutcome(
        planned,
        (GpuOutcome(planned.gpus[0], (StepReport(start, StepResult.DONE),), gpu),),
    )
    assert "Applied: 1 step done" in plain_text(outcome_page(done, rest, 80, stopped=False))
    page = plain_text(outcome_page(outcome, rest, 80, stopped=False))
    assert "! GPU 0: could not start MPS: it ended at once" in page
    assert "look at its log" in page
    assert "Applied" not in page
    assert "In sync" not in page
    assert "Partly failed" in page
