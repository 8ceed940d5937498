"""A plan as a page: per GPU the picture before and after, the steps, what stands in the way."""

from __future__ import annotations

from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import once_free
from nodeagent.terminal.gpu_cells import cells_after, cells_before, cells_now, slots_of
from nodeagent.terminal.page import Line, Tone, count, dim, gpu_blocks, line
from nodeagent.terminal.slices import drawing
from nodeagent.terminal.wording import gpu_title, problem_lines, step_sentence, verdict_span

_DEFAULT_POLICY = Policy()


def plan_page(plan: NodePlan, width: int, policy: Policy = _DEFAULT_POLICY) -> tuple[Line, ...]:
    """The whole page, at most `width` columns where words allow it; `policy` is the plan's."""
    bodies = [(gpu_title(gpu.before), _gpu_body(gpu, width - 2, policy)) for gpu in plan.gpus]
    return (*gpu_blocks(bodies), *problem_lines(plan.problems, Tone.BAD), summary(plan))


def _gpu_body(plan: GpuPlan, width: int, policy: Policy) -> tuple[Line, ...]:
    warning = plan.verdict in {Verdict.APPLICABLE, Verdict.IN_SYNC, Verdict.BLOCKED}
    return (
        line(verdict_span(plan.verdict, partly=bool(plan.problems))),
        *(
            line(dim(f"{written} is what this card's driver calls {name}"))
            for written, name in plan.respelled.items()
        ),
        *picture(plan, width, policy),
        *numbered_steps(plan),
        *problem_lines(plan.problems, Tone.WARNING if warning else Tone.BAD),
    )


def picture(plan: GpuPlan, width: int, policy: Policy) -> tuple[Line, ...]:
    """The GPU before and after, or only as it is when nothing would change. Of a blocked one it is
    shown what is in the way, and what is wanted.
    """
    if plan.before.mig is None:
        return ()
    now, then, shown = "before", "after", plan
    if not plan.steps:
        free = once_free(plan, policy)
        if free is None:
            return drawing([("now", cells_now(plan.before))], slots_of(plan.before), width)
        now, then, shown = "now", "wanted", free
    slots = max(slots_of(plan.before), slots_of(shown.after))
    before = cells_before(plan.before, shown.steps)
    after = cells_after(shown.after, plan.before, shown.steps)
    return drawing([(now, before), (then, after)], slots, width)


def numbered_steps(plan: GpuPlan) -> tuple[Line, ...]:
    """The steps in their order, each with its reason."""
    return tuple(
        line(f"{number:>2}. {step_sentence(step)}", dim(f"  ({step.reason})"))
        for number, step in enumerate(plan.steps, start=1)
    )


def summary(plan: NodePlan) -> Line:
    """The last line: the verdict on the whole plan."""
    span = verdict_span(plan.verdict, partly=any(gpu.problems for gpu in plan.gpus))
    gpus = sum(1 for gpu in plan.gpus if gpu.steps)
    match plan.verdict:
        case Verdict.IN_SYNC:
            return line("The plan is ", span, ": nothing to do.")
        case Verdict.APPLICABLE:
            steps = f"{count(len(plan.steps), 'step')} on {count(gpus, 'GPU')}"
            return line("The plan ", span, f": {steps}. Nothing was touched.")
        case Verdict.BLOCKED | Verdict.UNSATISFIABLE | Verdict.INVALID:
            rest = f" {count(gpus, 'GPU')} could be changed." if gpus else ""
            verb = "" if plan.verdict is Verdict.UNSATISFIABLE else "is "
            return line(f"The plan {verb}", span, f".{rest} Nothing was touched.")
