"""NVML calls as the tests make them: through pynvml, by the names of profiles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatedNode, simulated


@contextmanager
def node_with(
    boards: str | None = "h100-80gb", *, mig: bool = True, **options: Any
) -> Iterator[SimulatedNode]:
    """A simulated node with NVML initialised, and MIG on where the first GPU has it."""
    with simulated(boards, **options) as node:
        pynvml.nvmlInit()
        try:
            if mig and node.cards[0].board.has_mig:
                with node.changes():
                    for card in node.cards:
                        card.state.mig = card.state.pending = card.board.has_mig
            yield node
        finally:
            node.clear_faults()
            if node.state.driver_failure == 0 and pynvml.nvmlLib.session.initialised:
                pynvml.nvmlShutdown()


def refused(error: str, *asked: Callable[[], object]) -> None:
    for ask in asked:
        with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
            ask()


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def profile(device: Any, name: str) -> Any:
    """A profile by `3g`, `1g+me` (REV1), `1gR2` (double memory), `2g+gfx`, ..."""
    return profiles(device)[name]


def profiles(device: Any) -> dict[str, Any]:
    found = {}
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
        except pynvml.NVMLError_NotSupported:
            continue
        short = f"{info.sliceCount}g{str(info.name).partition('gb')[2]}"
        found["1gR2" if kind == pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 else short] = info
    return found


def create(device: Any, name: str, start: int | None = None) -> Any:
    info = profile(device, name)
    if start is None:
        return pynvml.nvmlDeviceCreateGpuInstance(device, info.id)
    size = next(size for begin, size in placements(device, info.id) if begin == start)
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, info.id, byref(place))


def create_device(device: Any, name: str, start: int | None = None) -> Any:
    """A GPU instance with one compute instance in all of it; the MIG device's handle."""
    instance = create(device, name, start)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, whole(instance).id)
    wanted = pynvml.nvmlGpuInstanceGetInfo(instance).id
    for mig_device in mig_devices(device):
        if pynvml.nvmlDeviceGetGpuInstanceId(mig_device) == wanted:
            return mig_device
    raise LookupError(name)


def whole(instance: Any) -> Any:
    found = list(compute_profiles(instance).values())
    return max(found, key=lambda info: (info.sliceCount, info.multiprocessorCount))


def compute_profiles(instance: Any) -> dict[str, Any]:
    """Every compute profile of a GPU instance by `1c`, `2c`, ..."""
    found = {}
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        found[f"{info.sliceCount}c"] = info
    return found


def placements(device: Any, profile_id: int) -> list[tuple[int, int]]:
    """All placements of a profile, by the two calls that NVML wants."""
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, places, byref(count))
    return [(place.start, place.size) for place in places]


def place_of(instance: Any) -> tuple[int, str]:
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return info.id, f"{info.placement.start}:{info.placement.size}"


def slot_of(compute: Any) -> tuple[int, str]:
    info = pynvml.nvmlComputeInstanceGetInfo(compute)
    return info.id, f"{info.placement.start}:{info.placement.size}"


def mig_devices(device: Any) -> list[Any]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except pynvml.NVMLError_NotFound:
            continue
    return found


def instances(device: Any, name: str) -> list[Any]:
    info = profile(device, name)
    array, count = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)(), c_uint()
    pynvml.nvmlDeviceGetGpuInstances(device, info.id, array, byref(count))
    return [array[index] for index in range(count.value)]


def free(device: Any, name: str) -> int:
    left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile(device, name).id)
    return int(left)
