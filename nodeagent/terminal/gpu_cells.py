"""A GPU's instances as boxes, each saying what happens to it."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.plan.observed import Access, Gpu, GpuInstance, Placement
from nodeagent.plan.steps import (
    CreateComputeInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Step,
)
from nodeagent.terminal.page import Tone
from nodeagent.terminal.slices import Cell
from nodeagent.terminal.wording import devices_in


def slots_of(gpu: Gpu) -> int:
    """How many memory slices the card has, from what its profiles can cover."""
    placements = [p for profile in gpu.profiles for p in profile.placements]
    placements += [instance.placement for instance in gpu.instances]
    return max((p.start + p.size for p in placements), default=1)


def cells_before(gpu: Gpu, steps: Iterable[Step]) -> tuple[Cell, ...]:
    """The GPU as it is; the instances that `steps` destroy or change are marked."""
    fates = _fates(steps)
    cells = [_cell(i, *fates.get(i.id, ("stays", Tone.STAYS))) for i in gpu.instances]
    return tuple(cells) or _without_instances(gpu)


def cells_after(gpu: Gpu, before: Gpu, steps: Iterable[Step]) -> tuple[Cell, ...]:
    """The GPU as it would be; what was not there before is marked new."""
    steps = tuple(steps)
    gone = {s.instance for s in steps if isinstance(s, DestroyGpuInstance)}
    fates = _fates(steps)
    kept = {(i.placement, i.profile): i for i in before.instances if i.id not in gone}
    cells = [_after_cell(i, kept, fates) for i in gpu.instances]
    return tuple(cells) or _without_instances(gpu)


def cells_now(gpu: Gpu) -> tuple[Cell, ...]:
    """The GPU as it is, with nothing said about the future."""
    cells = [_cell(i, "", Tone.PLAIN) for i in gpu.instances]
    return tuple(cells) or _without_instances(gpu)


def _after_cell(
    instance: GpuInstance,
    kept: dict[tuple[Placement, str], GpuInstance],
    fates: dict[int, tuple[str, Tone]],
) -> Cell:
    earlier = kept.get((instance.placement, instance.profile))
    if earlier is None:
        return _cell(instance, "new", Tone.NEW)
    if earlier.id in fates:
        return _cell(instance, "changed", Tone.NEW)
    return _cell(instance, "stays", Tone.STAYS)


def _fates(steps: Iterable[Step]) -> dict[int, tuple[str, Tone]]:
    """By GPU instance id; a destroyed instance counts as going, whatever else it meets."""
    fates: dict[int, tuple[str, Tone]] = {}
    for step in steps:
        if isinstance(step, DestroyGpuInstance):
            fates[step.instance] = ("goes", Tone.GOES)
        elif isinstance(step, DestroyComputeInstance | CreateComputeInstance):
            fates.setdefault(step.instance, ("changes", Tone.NEW))
    return fates


def _cell(instance: GpuInstance, fate: str, tone: Tone) -> Cell:
    in_use = instance.in_use and fate != "new"
    state = "in use" if in_use else fate
    labels = (devices_in(instance), state) if state else (devices_in(instance),)
    place = instance.placement
    return Cell(place.start, place.size, labels, Tone.IN_USE if in_use else tone)


def _without_instances(gpu: Gpu) -> tuple[Cell, ...]:
    return (Cell(0, slots_of(gpu), (mode_words(gpu),), Tone.DIM),)


def mode_words(gpu: Gpu) -> str:
    """Why there is no instance to draw."""
    if gpu.access is not Access.OK:
        return f"{gpu.access}: {gpu.access_reason}" if gpu.access_reason else str(gpu.access)
    if gpu.mig is None:
        return "no MIG on this card"
    if gpu.mig.current != gpu.mig.pending:
        return f"MIG {_on(gpu.mig.current)}, {_on(gpu.mig.pending)} after a reset"
    return "MIG on, no instances" if gpu.mig.current else "MIG off"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
