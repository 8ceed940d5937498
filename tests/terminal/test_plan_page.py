from nodeagent.plan.observed import Gpu, GpuInstance, MigMode, Placement
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
from nodeagent.terminal.page import BLANK, Span, Tone, line, painted, plain_text, wrapped
from nodeagent.terminal.plan_page import outcome_page, plan_page
from nodeagent.terminal.slices import fold
from tests.plan.daemons import A


def test_painted_text_says_the_same_as_plain_text() -> None:
    lines = [line(Span("end it ", Tone.BAD), Span("", Tone.DIM), "y"), line(Span("x", Tone.GOES))]
    assert painted(lines) == "\x1b[1;31mend it \x1b[0my\n\x1b[9;31mx\x1b[0m\n"


def test_long_lines_are_broken_at_blanks() -> None:
    found = wrapped([line("  run ", Span("kubectl drain gpu-node-7", Tone.BAD), " now")], 16)
    assert plain_text(found) == "  run kubectl\n    drain\n    gpu-node-7\n    now\n"
    bad = "".join(span.text for spans in found for span in spans if span.tone is Tone.BAD)
    assert bad == "kubectldraingpu-node-7"
    assert plain_text(wrapped([BLANK, line("a" * 10)], 4)) == "\naaaa\n  aa\n  aa\n  aa\n"


def test_what_does_not_fit_at_all_is_visibly_cut() -> None:
    """A name that is cut ends in an ellipsis, so that it is not taken for another."""
    assert fold("1c.3g.40gb", 6) == ("1c.3g…",)


def test_half_made_instances_are_called_so() -> None:
    half_made = (GpuInstance(1, 9, "3g.40gb", Placement(0, 4), ()),)
    gpu = Gpu(0, "GPU-0", mig=MigMode(current=True, pending=True), instances=half_made)
    planned = NodePlan(Verdict.IN_SYNC, (GpuPlan.in_sync(gpu),))
    assert "3g.40gb half made" in plain_text(plan_page(planned, 80))


def test_a_daemon_that_did_not_start_is_not_passed_over() -> None:
    """The GPUs are as they should be and nothing is left to plan, but it is no success."""
    gpu = Gpu(0, "GPU-0", mig=MigMode(current=False, pending=False))
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
        planned, (GpuOutcome(planned.gpus[0], (StepReport(start, StepResult.DONE),), gpu),)
    )
    assert "Applied: 1 step done" in plain_text(outcome_page(done, rest, 80, stopped=False))
    page = plain_text(outcome_page(outcome, rest, 80, stopped=False))
    assert "! GPU 0: could not start MPS: it ended at once" in page
    assert "look at its log" in page
    assert "Applied" not in page
    assert "In sync" not in page
    assert "Partly failed" in page
