"""What `apply` did: each step as it ends, then the hardware as it was read back."""

from __future__ import annotations

from nodeagent.plan.observed import Access
from nodeagent.plan.plan import GpuOutcome, NodeOutcome, NodePlan, StepReport, StepResult, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.terminal.gpu_cells import cells_now, slots_of
from nodeagent.terminal.page import BLANK, Line, Span, Tone, count, dim, gpu_blocks, indent, line
from nodeagent.terminal.slices import drawing
from nodeagent.terminal.wording import gpu_title, problem_lines, step_sentence, verdict_span

_RESULT_TONES = {
    StepResult.DONE: Tone.GOOD,
    StepResult.FAILED: Tone.BAD,
    StepResult.UNDONE: Tone.WARNING,
    StepResult.SKIPPED: Tone.DIM,
}


def step_line(index: int, report: StepReport) -> Line:
    """One step as it ended: `GPU 0  done     create 3g.40gb at 0  (0.05 s)`."""
    result = Span(f"{report.result:<9}", _RESULT_TONES[report.result])
    why = f": {report.message}" if report.message else ""
    time = dim(f"  ({report.seconds:.2f} s)") if report.result is not StepResult.SKIPPED else ""
    return line(f"GPU {index}  ", result, step_sentence(report.step) + why, time)


def outcome_page(
    outcome: NodeOutcome, rest: NodePlan, width: int, *, stopped: bool
) -> tuple[Line, ...]:
    """The GPUs as they are now, alike ones together; what is still to be done; the last word.

    `rest` is the plan for what was read back.
    """
    remaining = {gpu.before.key: (gpu.verdict, gpu.problems) for gpu in rest.gpus}
    bodies = []
    for gpu in outcome.gpus:
        verdict, problems = remaining[gpu.plan.before.key]
        if gpu.steps or problems or verdict is not Verdict.IN_SYNC:
            bodies.append((gpu_title(gpu.after), _gpu_body(gpu, verdict, problems, width)))
    return (
        *([BLANK, *gpu_blocks(bodies)] if bodies else []),
        *problem_lines(rest.problems, Tone.BAD),
        _last_word(outcome, rest, stopped=stopped),
    )


def _gpu_body(
    outcome: GpuOutcome, verdict: Verdict, left: tuple[Problem, ...], width: int
) -> tuple[Line, ...]:
    after = outcome.after
    restored = [step_line(after.index, report) for report in outcome.restored]
    drawn = after.mig is not None or after.instances
    well = verdict is Verdict.IN_SYNC and not outcome.failed and not left
    # A failure that was reported explains why a step is left; nothing is said twice.
    problems = () if well else dict.fromkeys((*outcome.problems, *left))
    return (
        *(drawing([("now", cells_now(after))], slots_of(after), width - 2) if drawn else ()),
        *([line("to restore the earlier layout:"), *indent(restored, 2)] if restored else []),
        *problem_lines(problems, Tone.WARNING),
    )


def _last_word(outcome: NodeOutcome, rest: NodePlan, *, stopped: bool) -> Line:
    done = sum(1 for gpu in outcome.gpus for step in gpu.steps if step.result is StepResult.DONE)
    if rest.verdict is Verdict.IN_SYNC:
        if any(gpu.failed for gpu in outcome.gpus) or any(gpu.problems for gpu in rest.gpus):
            return line(
                Span("Partly failed", Tone.BAD),
                f": {count(done, 'step')} done; the GPUs are as the document says, but not every "
                "MPS daemon on them is Ready.",
            )
        if not done:
            return line(Span("In sync", Tone.GOOD), ": nothing to do.")
        return line(
            Span("Applied", Tone.GOOD),
            f": {count(done, 'step')} done; read back, the node is as the document says.",
        )
    left = count(len(rest.steps), "step")
    if stopped:
        return line(Span("Stopped", Tone.WARNING), f": {count(done, 'step')} done, {left} left.")
    if rest.verdict is Verdict.APPLICABLE:
        return line(Span("Failed", Tone.BAD), f": {count(done, 'step')} done, {left} left.")
    unread = [gpu for gpu in outcome.gpus if gpu.after.access is not Access.OK]
    open_gpus = {gpu.before.key for gpu in rest.gpus if gpu.verdict is not Verdict.IN_SYNC}
    if open_gpus == {g.after.key for g in unread} and not any(map(_has_open_steps, unread)):
        names = ", ".join(str(gpu.after.index) for gpu in unread)
        return line(
            Span("Not confirmed", Tone.WARNING),
            f": {count(done, 'step')} done, but GPU {names} could not be read back; `nodeagent "
            "assert` compares it with the document once it answers.",
        )
    return line("Not all applied: ", verdict_span(rest.verdict), f"; {count(done, 'step')} done.")


def _has_open_steps(outcome: GpuOutcome) -> bool:
    return not outcome.steps or any(s.result is not StepResult.DONE for s in outcome.steps)
