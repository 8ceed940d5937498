"""Sentences for steps, verdicts and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import CreateGpuInstance, Step
from nodeagent.terminal.page import Line, Span, Tone, dim, index_ranges, line
from nodeagent.views.text import step_words

_VERDICT_TONES = {
    Verdict.IN_SYNC: Tone.GOOD,
    Verdict.APPLICABLE: Tone.NEW,
    Verdict.BLOCKED: Tone.WARNING,
    Verdict.UNSATISFIABLE: Tone.BAD,
    Verdict.INVALID: Tone.BAD,
}

_VERDICT_WORDS = {
    Verdict.IN_SYNC: "in sync",
    Verdict.APPLICABLE: "can be applied",
    Verdict.BLOCKED: "blocked",
    Verdict.UNSATISFIABLE: "cannot be satisfied on this card",
    Verdict.INVALID: "invalid",
}


def verdict_span(verdict: Verdict, *, partly: bool = False) -> Span:
    """The verdict in words, with its tone; `partly`: something will still be missing afterwards."""
    words = _VERDICT_WORDS[verdict]
    part = " in part" if partly and verdict is Verdict.APPLICABLE else ""
    return Span(words + part, _VERDICT_TONES[verdict])


def gpu_title(gpus: Sequence[Gpu]) -> Line:
    """One GPU by index, name and UUID; several alike by their indices."""
    first = gpus[0]
    name = first.name or "unnamed GPU"
    if len(gpus) == 1:
        return line(Span(f"GPU {first.index}", Tone.TITLE), f"  {name}", dim(f"  {first.uuid}"))
    indices = index_ranges(gpu.index for gpu in gpus)
    return line(Span(f"GPUs {indices}", Tone.TITLE), f"  {len(gpus)} x {name}")


def devices_in(instance: GpuInstance) -> str:
    """The MIG devices of a GPU instance: `3g.40gb`, `3 x 1c.3g.40gb`, or that it is half made."""
    if not instance.compute:
        return f"{instance.profile} half made"
    counts = Counter(device.profile for device in instance.compute)
    return " ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())


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
    lines: list[Line] = []
    for problem in problems:
        place = f"{problem.path}: " if problem.path else ""
        lines.append(line(Span(f"! {place}{problem.message}", tone)))
        if problem.remedy:
            lines.append(line(f"  {problem.remedy}"))
    return tuple(lines)
