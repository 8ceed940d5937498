"""GPUs, steps, verdicts and problems of a plan: boxes that say what happens to each instance, and
sentences.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from nodeagent.plan import steps
from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Problem
from nodeagent.terminal.page import Line, Span, Tone, remark, toned
from nodeagent.terminal.slices import Cell
from nodeagent.text import with_counts
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


def step_sentence(step: steps.Step) -> str:
    """What a step does, without its reason."""
    if not isinstance(step, steps.CreateGpuInstance) or len(step.compute) <= 1:
        return step_words(step)
    sizes = Counter(step.compute).items()
    parts = " + ".join(f"{n} x {c}c" if n > 1 else f"{c}c" for c, n in sizes)
    return f"{step_words(step)}, divided into {parts}"


def problem_lines(problems: Iterable[Problem], tone: Tone) -> tuple[Line, ...]:
    """Print each problem with the place in the document it comes from and its remedy below."""
    remarks = (remark(p.message, p.remedy, path=p.path or "", tone=tone) for p in problems)
    return tuple(row for rows in remarks for row in rows)


# --- the instances as boxes -----------------------------------------------------------------------


def slots_of(gpu: Gpu) -> int:
    """How many memory slices the card has, from what its profiles can cover."""
    placements = [p for profile in gpu.profiles for p in profile.placements]
    placements += [instance.placement for instance in gpu.instances]
    return max((p.start + p.size for p in placements), default=1)


def cells_now(gpu: Gpu) -> tuple[Cell, ...]:
    """The GPU as it is, with nothing said about the future."""
    return _cells(gpu, lambda _: "")


def cells_before(gpu: Gpu, to_do: Iterable[steps.Step]) -> tuple[Cell, ...]:
    """The GPU as it is; the instances that `to_do` destroys or changes are marked."""
    fates = _fates(to_do)
    return _cells(gpu, lambda instance: fates.get(instance.id, "stays"))


def cells_after(gpu: Gpu, before: Gpu, to_do: Iterable[steps.Step]) -> tuple[Cell, ...]:
    """The GPU as it would be; what was not there before is marked new."""
    fates = _fates(to_do)
    kept = {
        (i.placement, i.profile): "changed" if i.id in fates else "stays"
        for i in before.instances
        if fates.get(i.id) != "goes"
    }
    return _cells(gpu, lambda instance: kept.get((instance.placement, instance.profile), "new"))


def _fates(to_do: Iterable[steps.Step]) -> dict[int, str]:
    """Map GPU instance ids to what happens; one that is destroyed goes, whatever else happens."""
    fates: dict[int, str] = {}
    for step in to_do:
        if isinstance(step, steps.DestroyGpuInstance):
            fates[step.instance] = "goes"
        elif isinstance(step, steps.DestroyComputeInstance | steps.CreateComputeInstance):
            fates.setdefault(step.instance, "changes")
    return fates


def _cells(gpu: Gpu, fate_of: Callable[[GpuInstance], str]) -> tuple[Cell, ...]:
    cells = tuple(_cell(instance, fate_of(instance)) for instance in gpu.instances)
    labels = (mode_words(gpu), "MPS") if gpu.mps else (mode_words(gpu),)
    return cells or (Cell(0, slots_of(gpu), labels, Tone.DIM),)


def _cell(instance: GpuInstance, fate: str) -> Cell:
    place, in_use = instance.placement, instance.in_use and fate != "new"
    state, tone = toned("in use" if in_use else fate)
    names = with_counts(device.profile for device in instance.compute)
    shared = "MPS" if any(device.mps for device in instance.compute) else ""
    way = "in the way" if in_use and fate == "goes" else ""
    labels = (names or f"{instance.profile} half made", shared, state, way)
    return Cell(place.start, place.size, tuple(filter(None, labels)), tone)


def mode_words(gpu: Gpu) -> str:
    """Why there is no instance to draw."""
    if not gpu.answers:
        return f"{gpu.access}: {gpu.access_reason}" if gpu.access_reason else str(gpu.access)
    if gpu.mig is None:
        return "no MIG on this card"
    now, then = ("on" if on else "off" for on in (gpu.mig.current, gpu.mig.pending))
    if now != then:
        return f"MIG {now}, {then} after a reset"
    return "MIG on, no instances" if gpu.mig.current else "MIG off"
