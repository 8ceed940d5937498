"""A GPU's instances as boxes, each saying what happens to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, GpuInstance
from nodeagent.plan.steps import (
    CreateComputeInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Step,
)
from nodeagent.terminal.page import Tone
from nodeagent.terminal.slices import Cell
from nodeagent.terminal.wording import devices_in

_Fate: TypeAlias = tuple[str, Tone]

_NONE: _Fate = ("", Tone.PLAIN)
_STAYS: _Fate = ("stays", Tone.STAYS)
_GOES: _Fate = ("goes", Tone.GOES)
_CHANGES: _Fate = ("changes", Tone.NEW)
_CHANGED: _Fate = ("changed", Tone.NEW)
_NEW: _Fate = ("new", Tone.NEW)


def slots_of(gpu: Gpu) -> int:
    """How many memory slices the card has, from what its profiles can cover."""
    placements = [p for profile in gpu.profiles for p in profile.placements]
    placements += [instance.placement for instance in gpu.instances]
    return max((p.start + p.size for p in placements), default=1)


def cells_now(gpu: Gpu) -> tuple[Cell, ...]:
    """The GPU as it is, with nothing said about the future."""
    return _cells(gpu, lambda _: _NONE)


def cells_before(gpu: Gpu, steps: Iterable[Step]) -> tuple[Cell, ...]:
    """The GPU as it is; the instances that `steps` destroy or change are marked."""
    fates = _fates(steps)
    return _cells(gpu, lambda instance: fates.get(instance.id, _STAYS))


def cells_after(gpu: Gpu, before: Gpu, steps: Iterable[Step]) -> tuple[Cell, ...]:
    """The GPU as it would be; what was not there before is marked new."""
    fates = _fates(steps)
    kept = {
        (i.placement, i.profile): _CHANGED if i.id in fates else _STAYS
        for i in before.instances
        if fates.get(i.id) is not _GOES
    }
    return _cells(gpu, lambda instance: kept.get((instance.placement, instance.profile), _NEW))


def _fates(steps: Iterable[Step]) -> dict[int, _Fate]:
    """By GPU instance id; a destroyed instance counts as going, whatever else happens to it."""
    fates: dict[int, _Fate] = {}
    for step in steps:
        if isinstance(step, DestroyGpuInstance):
            fates[step.instance] = _GOES
        elif isinstance(step, DestroyComputeInstance | CreateComputeInstance):
            fates.setdefault(step.instance, _CHANGES)
    return fates


def _cells(gpu: Gpu, fate_of: Callable[[GpuInstance], _Fate]) -> tuple[Cell, ...]:
    cells = tuple(_cell(instance, *fate_of(instance)) for instance in gpu.instances)
    labels = (mode_words(gpu), *_shared([gpu.mps]))
    return cells or (Cell(0, slots_of(gpu), labels, Tone.DIM),)


def _shared(daemons: Iterable[DeviceDaemon | None]) -> tuple[str, ...]:
    return ("MPS",) if any(daemons) else ()


def _cell(instance: GpuInstance, fate: str, tone: Tone) -> Cell:
    in_use = instance.in_use and fate != "new"
    states: tuple[str, ...] = ("in use",) if in_use else (fate,) if fate else ()
    if in_use and fate == "goes":
        states = ("in use", "in the way")
    place = instance.placement
    shared = _shared(device.mps for device in instance.compute)
    labels = (devices_in(instance), *shared, *states)
    return Cell(place.start, place.size, labels, Tone.IN_USE if in_use else tone)


def mode_words(gpu: Gpu) -> str:
    """Why there is no instance to draw."""
    if gpu.access is not Access.OK:
        return f"{gpu.access}: {gpu.access_reason}" if gpu.access_reason else str(gpu.access)
    if gpu.mig is None:
        return "no MIG on this card"
    now, then = ("on" if on else "off" for on in (gpu.mig.current, gpu.mig.pending))
    if now != then:
        return f"MIG {now}, {then} after a reset"
    return "MIG on, no instances" if gpu.mig.current else "MIG off"
