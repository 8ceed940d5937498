"""Plans on a terminal: what would be done, whether the node is as a document says, and what `apply`
did.
"""

from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    Policy,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.planner import once_free
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step
from nodeagent.terminal.page import BLANK, Line, Span, Tone, dim, gpu_blocks, indent, line, toned
from nodeagent.terminal.plan_words import (
    cells_after,
    cells_before,
    cells_now,
    problem_lines,
    slots_of,
    step_sentence,
    verdict_span,
)
from nodeagent.terminal.slices import drawing
from nodeagent.text import alike, gpus_words, quantity
from nodeagent.views.text import layout_words, step_words

# --- plan -----------------------------------------------------------------------------------------


_DEFAULT_POLICY = Policy()


def plan_page(plan: NodePlan, width: int, policy: Policy = _DEFAULT_POLICY) -> tuple[Line, ...]:
    """The whole page, at most `width` columns where words allow it; `policy` is the plan's."""
    bodies = [(gpu.before, _gpu_body(gpu, width - 2, policy)) for gpu in plan.gpus]
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
    """The GPU before and after its steps, or as it is when nothing would change. A blocked one is
    shown as it is, and as it would be once its users have gone.
    """
    if plan.before.mig is None:
        return ()
    first, second, shown = "before", "after", plan
    if not plan.steps:
        free = once_free(plan, policy)
        if free is None:
            return drawing([("now", cells_now(plan.before))], slots_of(plan.before), width)
        first, second, shown = "now", "wanted", free
    slots = max(slots_of(plan.before), slots_of(shown.after))
    before = cells_before(plan.before, shown.steps)
    after = cells_after(shown.after, plan.before, shown.steps)
    return drawing([(first, before), (second, after)], slots, width)


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
            steps = f"{quantity(len(plan.steps), 'step')} on {quantity(gpus, 'GPU')}"
            return line("The plan ", span, f": {steps}. Nothing was touched.")
        case Verdict.BLOCKED | Verdict.UNSATISFIABLE | Verdict.INVALID:
            rest = f" {quantity(gpus, 'GPU')} could be changed." if gpus else ""
            verb = "" if plan.verdict is Verdict.UNSATISFIABLE else "is "
            return line(f"The plan {verb}", span, f".{rest} Nothing was touched.")


# --- assert ---------------------------------------------------------------------------------------


def assert_page(plan: NodePlan) -> tuple[Line, ...]:
    """Whether the node is as the document says; GPUs with equal differences share a line."""
    different = [gpu for gpu in plan.gpus if gpu.verdict is not Verdict.IN_SYNC or gpu.problems]
    if plan.verdict is Verdict.IN_SYNC and not different:
        checked = quantity(len(plan.gpus), "GPU")
        return (line(Span("The node is as the document says", Tone.GOOD), f" ({checked})."),)
    title = Span("The node is not as the document says", Tone.BAD)
    where = f": {quantity(len(different), 'GPU')} of {len(plan.gpus)} differ." if different else "."
    lines: list[Line] = []
    groups = alike((_difference(gpu), gpu.before.index) for gpu in different)
    for (first, *rest), indices in groups.items():
        lines += [(Span(f"{gpus_words(indices)}: ", Tone.TITLE), *first), *indent(rest, 2)]
    lines += problem_lines(plan.problems, Tone.BAD)
    return (line(title, where), *indent(lines, 2))


def _difference(plan: GpuPlan) -> tuple[Line, ...]:
    has = f"has {layout_words(plan.before)}"
    if plan.steps:
        wanted = layout_words(plan.after)
        if wanted == layout_words(plan.before):  # what differs is not a part of the layout
            wanted = ", ".join(dict.fromkeys(map(_wanted, plan.steps)))
        on = "MIG on, " if wanted == "no instances" else ""
        return (line(f"{has}; should have {on}{wanted}"),)
    return (line(has), *problem_lines(plan.problems, Tone.WARNING))


def _wanted(step: Step) -> str:
    where = ""
    if isinstance(step, SetComputeMode | StartMps) and step.placement:
        where = f" on {step.profile} at {step.placement.start}"
    match step:
        case SetComputeMode(mode=mode):
            return f"compute mode {mode.value}{where}"
        case SetTimeSlice(time_slice=time_slice):
            return f"time slice {time_slice.value}"
        case StartMps():
            return f"MPS with other limits{where}"
        case _:
            return step_words(step)


# --- apply ----------------------------------------------------------------------------------------


def step_line(index: int, report: StepReport) -> Line:
    """One step as it ended: `GPU 0  done     create 3g.40gb at 0  (0.05 s)`."""
    result = Span(f"{report.result:<9}", toned(report.result).tone)
    why = f": {report.message}" if report.message else ""
    time = dim(f"  ({report.seconds:.2f} s)") if report.result is not StepResult.SKIPPED else ""
    return line(f"GPU {index}  ", result, step_sentence(report.step) + why, time)


def outcome_page(
    outcome: NodeOutcome, rest: NodePlan, width: int, *, stopped: bool
) -> tuple[Line, ...]:
    """The GPUs as they are now, alike ones together; what is still to be done; a summary.

    `rest` is the plan for what was read back.
    """
    remaining = {gpu.before.key: (gpu.verdict, gpu.problems) for gpu in rest.gpus}
    bodies = []
    for gpu in outcome.gpus:
        verdict, problems = remaining[gpu.plan.before.key]
        if gpu.steps or problems or verdict is not Verdict.IN_SYNC:
            bodies.append((gpu.after, _outcome_body(gpu, verdict, problems, width)))
    return (
        *([BLANK, *gpu_blocks(bodies)] if bodies else []),
        *problem_lines(rest.problems, Tone.BAD),
        _outcome_summary(outcome, rest, stopped=stopped),
    )


def _outcome_body(
    outcome: GpuOutcome, verdict: Verdict, left: tuple[Problem, ...], width: int
) -> tuple[Line, ...]:
    after = outcome.after
    restored = [step_line(after.index, report) for report in outcome.restored]
    has_layout = after.mig is not None or after.instances
    is_done = verdict is Verdict.IN_SYNC and not outcome.failed and not left
    # A failure that was reported explains why a step is left; nothing is said twice.
    problems = () if is_done else dict.fromkeys((*outcome.problems, *left))
    return (
        *(drawing([("now", cells_now(after))], slots_of(after), width - 2) if has_layout else ()),
        *([line("to restore the earlier layout:"), *indent(restored, 2)] if restored else []),
        *problem_lines(problems, Tone.WARNING),
    )


def _outcome_summary(outcome: NodeOutcome, rest: NodePlan, *, stopped: bool) -> Line:
    number = sum(1 for gpu in outcome.gpus for step in gpu.steps if step.result is StepResult.DONE)
    done, left = f"{quantity(number, 'step')} done", f"{quantity(len(rest.steps), 'step')} left"
    # Every GPU that is not in sync had all its steps done, and could not be read back.
    unread = [gpu for gpu in outcome.gpus if not gpu.after.answers]
    begun = [gpu.steps and all(s.result is StepResult.DONE for s in gpu.steps) for gpu in unread]
    open_gpus = {gpu.before.key for gpu in rest.gpus if gpu.verdict is not Verdict.IN_SYNC}
    if rest.verdict is Verdict.IN_SYNC:
        if any(gpu.failed for gpu in outcome.gpus) or any(gpu.problems for gpu in rest.gpus):
            unready = "the GPUs are as the document says, but not every MPS daemon on them is Ready"
            word, said = Span("Partly failed", Tone.BAD), f"{done}; {unready}."
        elif not number:
            word, said = Span("In sync", Tone.GOOD), "nothing to do."
        else:
            read = "read back, the node is as the document says"
            word, said = Span("Applied", Tone.GOOD), f"{done}; {read}."
    elif stopped:
        word, said = Span("Stopped", Tone.WARNING), f"{done}, {left}."
    elif rest.verdict is Verdict.APPLICABLE:
        word, said = Span("Failed", Tone.BAD), f"{done}, {left}."
    elif open_gpus == {g.after.key for g in unread} and all(begun):
        names = ", ".join(str(gpu.after.index) for gpu in unread)
        later = "`nodeagent assert` compares it with the document once it answers"
        said = f"{done}, but GPU {names} could not be read back; {later}."
        word = Span("Not confirmed", Tone.WARNING)
    else:
        return line("Not all applied: ", verdict_span(rest.verdict), f"; {done}.")
    return line(word, f": {said}")
