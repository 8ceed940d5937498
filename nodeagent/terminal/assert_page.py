"""Whether the node is as a document says: one line, then what differs on each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step
from nodeagent.terminal.page import Line, Span, Tone, count, indent, line
from nodeagent.terminal.wording import problem_lines
from nodeagent.text import index_ranges
from nodeagent.views.text import layout_words, step_words


def assert_page(plan: NodePlan) -> tuple[Line, ...]:
    """Equal differences are shown once."""
    different = [gpu for gpu in plan.gpus if gpu.verdict is not Verdict.IN_SYNC or gpu.problems]
    if plan.verdict is Verdict.IN_SYNC and not different:
        checked = count(len(plan.gpus), "GPU")
        return (line(Span("The node is as the document says", Tone.GOOD), f" ({checked})."),)
    title = Span("The node is not as the document says", Tone.BAD)
    where = f": {count(len(different), 'GPU')} of {len(plan.gpus)} differ." if different else "."
    return (
        line(title, where),
        *indent(_differences(different), 2),
        *indent(problem_lines(plan.problems, Tone.BAD), 2),
    )


def _differences(plans: Iterable[GpuPlan]) -> list[Line]:
    groups: dict[tuple[Line, ...], list[int]] = {}
    for plan in plans:
        groups.setdefault(_difference(plan), []).append(plan.before.index)
    lines: list[Line] = []
    for difference, indices in groups.items():
        name = f"GPU{'s' if len(indices) > 1 else ''} {index_ranges(indices)}: "
        first, *rest = difference
        lines += [(Span(name, Tone.TITLE), *first), *indent(rest, 2)]
    return lines


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
