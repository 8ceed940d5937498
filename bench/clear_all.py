"""The usual way, for comparison only: clear the GPU, then create in order until one order works.

This is what NVIDIA's mig-parted does: a layout that differs in anything is cleared whole; the
wanted instances, largest first, are created without placements, so that the driver chooses; when
a create is refused, everything is cleared and the next order is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from dataclasses import dataclass
from typing import Any

import pynvml

_KINDS = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)


@dataclass(slots=True)
class Tally:
    """What a change cost."""

    destroyed: int = 0
    created: int = 0
    refused: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """What this way needs to know of a profile; `attributes` sorts +me before the plain one."""

    id: int
    name: str
    slices: int
    attributes: str
    count: int


def profiles(device: Any) -> dict[str, Profile]:
    """The card's profiles by name."""
    found = {}
    for kind in _KINDS:
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
        except pynvml.NVMLError:
            continue
        name = info.name.removeprefix("MIG ")
        attributes = name.partition("+")[2]
        found[name] = Profile(info.id, name, info.sliceCount, attributes, info.instanceCount)
    return found


def apply(device: Any, table: dict[str, Profile], wanted: Sequence[str]) -> Tally:
    """Make the GPU hold `wanted`, the usual way."""
    tally = Tally()
    present = _present(device, table)
    if sorted(name for name, _ in present) == sorted(wanted):
        tally.done = True
        return tally
    order = sorted(wanted, key=lambda n: (table[n].slices, table[n].attributes), reverse=True)
    for attempt in _orders(order):
        _clear(device, table, tally)
        if all(_create(device, table[name], tally) for name in attempt):
            tally.done = True
            return tally
    _clear(device, table, tally)
    return tally


def _orders(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every different order of `names`, the given one first."""
    if not names:
        yield ()
    for i, name in enumerate(names):
        if name not in names[:i]:
            for rest in _orders([*names[:i], *names[i + 1 :]]):
                yield (name, *rest)


def _present(device: Any, table: dict[str, Profile]) -> list[tuple[str, Any]]:
    found = []
    for profile in table.values():
        handles = (pynvml.c_nvmlGpuInstance_t * profile.count)()
        count = c_uint(0)
        pynvml.nvmlDeviceGetGpuInstances(device, profile.id, handles, byref(count))
        found += [(profile.name, handles[i]) for i in range(count.value)]
    return found


def _clear(device: Any, table: dict[str, Profile], tally: Tally) -> None:
    for name, instance in _present(device, table):
        for compute in _compute_instances(instance, table[name]):
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        tally.destroyed += 1


def _compute_instances(instance: Any, profile: Profile) -> list[Any]:
    kind = _whole(instance, profile)
    handles = (pynvml.c_nvmlComputeInstance_t * kind.instanceCount)()
    count = c_uint(0)
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, kind.id, handles, byref(count))
    return [handles[i] for i in range(count.value)]


def _whole(instance: Any, profile: Profile) -> Any:
    """The compute profile that has all of the GPU instance."""
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
        except pynvml.NVMLError:
            continue
        if info.sliceCount == profile.slices:
            return info
    raise LookupError(profile.name)


def _create(device: Any, profile: Profile, tally: Tally) -> bool:
    try:
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, profile.id)
    except pynvml.NVMLError:
        tally.refused += 1
        return False
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _whole(instance, profile).id)
    tally.created += 1
    return True
