"""NVML in types: one function for each pynvml wrapper that the agent uses to see and change GPUs.

What must never happen here: a structure passed by value. pynvml hands the caller's argument to C
as it is, without declared argument types, so placements go in by `byref` and lists as ctypes
arrays. Errors come out as the agent's own, by their number.

Every function may block for as long as the driver likes, so they are called in worker threads only.
"""

from collections.abc import Callable
from ctypes import byref, c_uint
from functools import partial
from operator import attrgetter
from typing import Any, Final, NewType, TypeVar

import pynvml

from nodeagent.gpu.nvml_errors import driver_error
from nodeagent.gpu.workers import current
from nodeagent.plan.observed import (
    ComputeInstanceProfile,
    Engines,
    GpuInstanceProfile,
    Memory,
    MigMode,
    Placement,
)
from nodeagent.plan.shares import ComputeMode
from nodeagent.structs import Struct

# Opaque pointers. A MIG device has a device handle of its own.
Device = NewType("Device", object)
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)


class InstanceInfo(Struct, frozen=True):
    """An existing GPU or compute instance: its id, profile and placement."""

    id: int
    profile_id: int
    placement: Placement


# NVML's kinds of compute instances and the slices that their names say.
COMPUTE_INSTANCE_KINDS: Final[dict[int, int]] = {
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE: 1,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE: 2,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE: 3,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE: 4,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE: 7,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE: 8,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE: 6,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: 1,
    pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL: 7,
}
COMPUTE_MODES: Final[dict[int, ComputeMode]] = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_THREAD,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}
MAX_LINKS: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS

_MIB = 1 << 20
# More than any GPU has places: 8 memory slices, 12 on RTX PRO Blackwell.
_MAX_PLACEMENTS = 64

Result = TypeVar("Result")


def checked_call(
    function: Callable[..., Any], *arguments: object, name: str = "", **versions: int
) -> Any:
    """Call NVML; `name` is the C function, for errors, if the wrapper has another name."""
    name = name or function.__name__
    progress = current()
    progress.begin(name)
    try:
        return function(*arguments, **versions)
    except pynvml.NVMLError as error:
        raise driver_error(int(error.value), name) from error
    finally:
        progress.end()


def call(function: str, *arguments: object) -> Any:
    """One call of pynvml's function of that name; raises the agent's errors."""
    return checked_call(getattr(pynvml, function), *arguments, name=function)


def _as(kind: Callable[[Any], Result], wrapper: Callable[..., Any]) -> Callable[..., Result]:
    return lambda *arguments: kind(checked_call(wrapper, *arguments))


# --- calls whose answer is one value --------------------------------------------------------------

initialise: Callable[[], None] = partial(checked_call, pynvml.nvmlInit)
# Undoes one `initialise`; after the last one all handles are invalid.
shutdown: Callable[[], None] = partial(checked_call, pynvml.nvmlShutdown)
device_count: Callable[[], int] = _as(int, pynvml.nvmlDeviceGetCount)
device_by_index: Callable[[int], Device] = _as(Device, pynvml.nvmlDeviceGetHandleByIndex)
device_by_uuid: Callable[[str], Device] = _as(Device, pynvml.nvmlDeviceGetHandleByUUID)
uuid: Callable[[Device], str] = _as(str, pynvml.nvmlDeviceGetUUID)
name: Callable[[Device], str] = _as(str, pynvml.nvmlDeviceGetName)
# None for a mode that this version does not know. A GPU in MIG mode refuses it: there each MIG
# device has its own (nvml.h: "device must be MIG device handle").
compute_mode: Callable[[Device], ComputeMode | None] = _as(
    COMPUTE_MODES.get, pynvml.nvmlDeviceGetComputeMode
)
mig_mode: Callable[[Device], MigMode] = _as(
    lambda modes: MigMode(*map(bool, modes)), pynvml.nvmlDeviceGetMigMode
)
# Returns the activation status: 0, or the code that keeps the mode from being current.
set_mig_mode: Callable[[Device, bool], int] = _as(int, pynvml.nvmlDeviceSetMigMode)
mig_device: Callable[[Device, int], Device] = _as(
    Device, pynvml.nvmlDeviceGetMigDeviceHandleByIndex
)
gpu_instance_id: Callable[[Device], int] = _as(int, pynvml.nvmlDeviceGetGpuInstanceId)
compute_instance_id: Callable[[Device], int] = _as(int, pynvml.nvmlDeviceGetComputeInstanceId)
gpu_instance_by_id: Callable[[Device, int], GpuInstanceHandle] = _as(
    GpuInstanceHandle, pynvml.nvmlDeviceGetGpuInstanceById
)
compute_instance_by_id: Callable[[GpuInstanceHandle, int], ComputeInstanceHandle] = _as(
    ComputeInstanceHandle, pynvml.nvmlGpuInstanceGetComputeInstanceById
)
# At a place that the driver chooses, of the profile with that id.
create_compute_instance: Callable[[GpuInstanceHandle, int], ComputeInstanceHandle] = _as(
    ComputeInstanceHandle, pynvml.nvmlGpuInstanceCreateComputeInstance
)
destroy_gpu_instance: Callable[[GpuInstanceHandle], None] = partial(
    checked_call, pynvml.nvmlGpuInstanceDestroy
)
destroy_compute_instance: Callable[[ComputeInstanceHandle], None] = partial(
    checked_call, pynvml.nvmlComputeInstanceDestroy
)


def memory(device: Device) -> Memory:
    """`used` is without what the driver keeps for itself."""
    info = checked_call(
        pynvml.nvmlDeviceGetMemoryInfo,
        device,
        version=pynvml.nvmlMemory_v2,
        name="nvmlDeviceGetMemoryInfo_v2",
    )
    return Memory(used=info.used, total=info.total)


def set_compute_mode(device: Device, mode: ComputeMode) -> None:
    """Set it at once, as root, until the driver's next start or the GPU's next reset."""
    number = next(number for number, known in COMPUTE_MODES.items() if known is mode)
    checked_call(pynvml.nvmlDeviceSetComputeMode, device, number)


def changes_mode_without_reset(device: Device) -> bool:
    """Field 184, IS_RESETLESS_MIG_SUPPORTED; raises NotSupported where it is not known."""
    field = pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
    value = checked_call(pynvml.nvmlDeviceGetFieldValues, device, [field])[0]
    if value.nvmlReturn:
        raise driver_error(value.nvmlReturn, "nvmlDeviceGetFieldValues")
    return bool(value.value.uiVal)


compute_slices: Callable[[Device], int] = _as(
    attrgetter("computeInstanceSliceCount"), pynvml.nvmlDeviceGetAttributes
)


# --- GPU instances and compute instances ----------------------------------------------------------


def gpu_instance_profile(device: Device, kind: int) -> GpuInstanceProfile:
    """`kind` is NVML's enumeration value, not the id. Placements are another call."""
    info = _profile(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device, kind)
    return GpuInstanceProfile(
        id=info.id,
        kind=kind,
        slices=info.sliceCount,
        max_count=info.instanceCount,
        multiprocessors=info.multiprocessorCount,
        memory=info.memorySizeMB * _MIB,
        engines=Engines(
            copy=info.copyEngineCount,
            decoder=info.decoderCount,
            encoder=info.encoderCount,
            jpeg=info.jpegCount,
            ofa=info.ofaCount,
        ),
        name=info.name,
        placements=(),
    )


def compute_profile(instance: GpuInstanceHandle, kind: int) -> ComputeInstanceProfile:
    """Read a compute profile as `gpu_instance_profile` does."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    wrapper = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    info = _profile(wrapper, instance, kind, shared)
    return ComputeInstanceProfile(
        id=info.id,
        slices=info.sliceCount,
        max_count=info.instanceCount,
        multiprocessors=info.multiprocessorCount,
    )


def gpu_instance_placements(device: Device, profile_id: int) -> tuple[Placement, ...]:
    """The placements of a profile's instances on the empty GPU."""
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _MAX_PLACEMENTS)()
    wrapper = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    return tuple(sorted(map(_placement, _listed(wrapper, device, profile_id, places))))


def compute_placements(instance: GpuInstanceHandle, profile_id: int) -> tuple[Placement, ...]:
    """The placements of a profile's compute instances in the empty GPU instance."""
    places = (pynvml.c_nvmlComputeInstancePlacement_t * _MAX_PLACEMENTS)()
    wrapper = pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    return tuple(sorted(map(_placement, _listed(wrapper, instance, profile_id, places))))


def gpu_instances(device: Device, profile_id: int, most: int) -> tuple[GpuInstanceHandle, ...]:
    """The instances of one profile; there must not be more than `most`."""
    handles = (pynvml.c_nvmlGpuInstance_t * most)()
    return tuple(_listed(pynvml.nvmlDeviceGetGpuInstances, device, profile_id, handles))


def compute_instances(
    instance: GpuInstanceHandle, profile_id: int, most: int
) -> tuple[ComputeInstanceHandle, ...]:
    """The compute instances of one profile; there must not be more than `most`."""
    handles = (pynvml.c_nvmlComputeInstance_t * most)()
    return tuple(_listed(pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile_id, handles))


def create_gpu_instance(device: Device, profile_id: int, placement: Placement) -> GpuInstanceHandle:
    """Create one of the profile with that id, at that place."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    wrapper = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    return GpuInstanceHandle(checked_call(wrapper, device, profile_id, byref(place)))


def _instance_info(info: Any) -> InstanceInfo:
    return InstanceInfo(info.id, info.profileId, _placement(info.placement))


gpu_instance_info: Callable[[GpuInstanceHandle], InstanceInfo] = _as(
    _instance_info, pynvml.nvmlGpuInstanceGetInfo
)
compute_instance_info: Callable[[ComputeInstanceHandle], InstanceInfo] = _as(
    _instance_info, pynvml.nvmlComputeInstanceGetInfo
)


def _listed(wrapper: Callable[..., Any], owner: object, profile_id: int, room: Any) -> list[Any]:
    count = c_uint(len(room))
    checked_call(wrapper, owner, profile_id, room, byref(count))
    return list(room[: count.value])


def _profile(wrapper: Callable[..., Any], *arguments: object) -> Any:
    return checked_call(wrapper, *arguments, version=2, name=f"{wrapper.__name__}V")


def _placement(place: Any) -> Placement:
    return Placement(int(place.start), int(place.size))
