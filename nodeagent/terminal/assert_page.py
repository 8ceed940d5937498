"""Whether the node is as a document says: one line, then what differs on each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.planning.plan import GpuPlan, NodePlan, Verdict
from nodeagent.reports.words import layout_words
from nodeagent.terminal.page import Line, Span, Tone, indent, line
from nodeagent.terminal.wording import count, index_ranges, problem_lines


def assert_page(plan: NodePlan) -> tuple[Line, ...]:
    """Alike differences are said once."""
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
        on = "MIG on, " if layout_words(plan.after) == "no instances" else ""
        return (line(f"{has}; should have {on}{layout_words(plan.after)}"),)
    return (line(has), *problem_lines(plan.problems, Tone.WARNING))
