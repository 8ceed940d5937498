"""Sentences for steps, verdicts and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import CreateGpuInstance, Step
from nodeagent.terminal.page import GpuTitle, Line, Span, Tone, counted, remark
from nodeagent.views.text import step_words

_VERDICTS = {
    Verdict.IN_SYNC: Span("in sync", Tone.GOOD),
    Verdict.APPLICABLE: Span("can be applied", Tone.NEW),
    Verdict.BLOCKED: Span("blocked", Tone.WARNING),
    Verdict.UNSATISFIABLE: Span("cannot be satisfied on this card", Tone.BAD),
    Verdict.INVALID: Span("invalid", Tone.BAD),
}


def verdict_span(verdict: Verdict, *, partly: bool = False) -> Span:
    """The verdict in words, with its tone; `partly`: something will still be missing afterwards."""
    if partly and verdict is Verdict.APPLICABLE:
        return Span("can be applied partly", Tone.NEW)
    return _VERDICTS[verdict]


def gpu_title(gpu: Gpu) -> GpuTitle:
    """By index, name and UUID."""
    return GpuTitle(gpu.index, gpu.name or "unnamed GPU", gpu.uuid)


def devices_in(instance: GpuInstance) -> str:
    """The MIG devices of a GPU instance: `3g.40gb`, `3 x 1c.3g.40gb`, or that it is half made."""
    if not instance.compute:
        return f"{instance.profile} half made"
    return counted(device.profile for device in instance.compute)


def step_sentence(step: Step) -> str:
    """What a step does, without its reason."""
    if isinstance(step, CreateGpuInstance):
        return step_words(step) + _division(step.compute)
    return step_words(step)


def _division(compute: Sequence[int]) -> str:
    if len(compute) <= 1:
        return ""
    sizes = Counter(compute).items()
    return ", divided into " + " + ".join(f"{n} x {c}c" if n > 1 else f"{c}c" for c, n in sizes)


def problem_lines(problems: Iterable[Problem], tone: Tone) -> tuple[Line, ...]:
    """Each problem with the place in the document it comes from and its remedy below."""
    remarks = (remark(p.message, p.remedy, path=p.path or "", tone=tone) for p in problems)
    return tuple(row for rows in remarks for row in rows)
