"""NVML in types: one small method for each pynvml wrapper the agent uses, and nothing else.

What must never happen here: a structure passed by value. pynvml hands the caller's argument to C
as it is, without declared argument types, so placements go in by `byref` and lists as ctypes
arrays. Errors come out as the agent's own, by their number; a function that the installed driver
lacks is asked for once and then counts as not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NewType, TypeVar

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml_errors import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    driver_error,
)
from nodeagent.gpu.workers import current
from nodeagent.plan.observed import (
    ComputeInstanceProfile,
    Engines,
    GpuInstanceProfile,
    Memory,
    Placement,
)
from nodeagent.plan.shares import ComputeMode

# Opaque pointers. A MIG device has a device handle of its own.
Device = NewType("Device", object)
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """Where an existing GPU or compute instance lies, and of which profile it is."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device; the ids are None outside MIG. `memory` in bytes."""

    pid: int
    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


class LinkEnd(Enum):
    """What is at the other end of an NVLink."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"


GPU_INSTANCE_KINDS: Final[int] = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
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
PASSTHROUGH: Final[int] = pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH

MOST_LINKS: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS

_LINK_ENDS: Final[dict[int, LinkEnd]] = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: LinkEnd.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: LinkEnd.SWITCH,
}
_NODE_WORDS = 16  # of 64 NUMA nodes each; Linux can have 1024
_MIB = 1 << 20
_NO_INSTANCE = 0xFFFFFFFF  # the id that NVML gives to processes outside any instance
# More than any GPU has places: 8 memory slices, 12 on RTX PRO Blackwell.
_MOST_PLACEMENTS = 64
_GROWING = 3  # how often a list that grows between its two calls is asked for

Result = TypeVar("Result")


def _call(
    function: Callable[..., Result], *arguments: object, name: str = "", **versions: int
) -> Result:
    """`name` is for errors, where the C function is another than the wrapper's name says."""
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
    wrapper = getattr(pynvml, function, None)
    if wrapper is None:
        raise driver_error(FUNCTION_NOT_FOUND, function)
    return _call(wrapper, *arguments, name=function)


class Nvml:
    """The library, once initialised. Every method is one driver call unless it says otherwise.

    All raise the errors of `nodeagent.errors`; all may block for as long as the driver likes, so
    they are made in worker threads only.
    """

    # --- the library ----------------------------------------------------------------------------

    def initialise(self) -> None:
        _call(pynvml.nvmlInit)

    def shutdown(self) -> None:
        """Undo one `initialise`; all handles become invalid."""
        _call(pynvml.nvmlShutdown)

    def driver_version(self) -> str:
        return str(_call(pynvml.nvmlSystemGetDriverVersion))

    def device_count(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetCount))

    def device_by_index(self, index: int) -> Device:
        return Device(_call(pynvml.nvmlDeviceGetHandleByIndex, index))

    def device_by_uuid(self, uuid: str) -> Device:
        return Device(_call(pynvml.nvmlDeviceGetHandleByUUID, uuid))

    # --- a device: a GPU or a MIG device ----------------------------------------------------------

    def uuid(self, device: Device) -> str:
        return str(_call(pynvml.nvmlDeviceGetUUID, device))

    def name(self, device: Device) -> str:
        return str(_call(pynvml.nvmlDeviceGetName, device))

    def pci_address(self, device: Device) -> tuple[str, int, int]:
        """Bus id, device id and subsystem id; ids are 32 bits, device high and vendor low."""
        info: Any = _call(pynvml.nvmlDeviceGetPciInfo, device)
        return _text(info.busId), int(info.pciDeviceId), int(info.pciSubSystemId)

    def minor_number(self, device: Device) -> int:
        """The N of /dev/nvidiaN."""
        return int(_call(pynvml.nvmlDeviceGetMinorNumber, device))

    def memory(self, device: Device) -> Memory:
        """`used` is without what the driver keeps for itself, where the driver reports that."""
        wrapper = pynvml.nvmlDeviceGetMemoryInfo
        info: Any = _newest(
            lambda: _call(
                wrapper, device, version=pynvml.nvmlMemory_v2, name="nvmlDeviceGetMemoryInfo_v2"
            ),
            lambda: _call(wrapper, device),
        )
        return Memory(used=info.used, total=info.total)

    def compute_capability(self, device: Device) -> tuple[int, int]:
        major, minor = _call(pynvml.nvmlDeviceGetCudaComputeCapability, device)
        return int(major), int(minor)

    def virtualization_mode(self, device: Device) -> int:
        return int(_call(pynvml.nvmlDeviceGetVirtualizationMode, device))

    # --- where it is in the machine ---------------------------------------------------------------

    def nearest_memory(self, device: Device) -> tuple[int, ...]:
        """The NUMA nodes of the host whose memory is nearest, as in `nvidia-smi topo -m`.

        nvmlDeviceGetNumaNodeId is something else: the node that a GPU's own memory is, on
        machines where that is one.
        """
        words: Any = _call(
            pynvml.nvmlDeviceGetMemoryAffinity, device, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
        )
        return tuple(
            64 * number + bit
            for number, word in enumerate(words)
            for bit in range(64)
            if word >> bit & 1
        )

    def nvlink_is_up(self, device: Device, link: int) -> bool:
        return bool(_call(pynvml.nvmlDeviceGetNvLinkState, device, link))

    def nvlink_end(self, device: Device, link: int) -> LinkEnd:
        """What an active link leads to."""
        kind = _call(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, device, link)
        return _LINK_ENDS.get(int(kind), LinkEnd.OTHER)

    def nvlink_remote_bus_id(self, device: Device, link: int) -> str:
        """The PCI address of what an active link leads to."""
        wrapper = pynvml.nvmlDeviceGetNvLinkRemotePciInfo
        info: Any = _call(wrapper, device, link, name=f"{wrapper.__name__}_v2")
        return _text(info.busId)

    # --- compute mode -----------------------------------------------------------------------------

    def compute_mode(self, device: Device) -> ComputeMode | None:
        """None for a mode that this version does not know. A GPU in MIG mode refuses it: there
        each MIG device has its own (nvml.h: "device must be MIG device handle").
        """
        return COMPUTE_MODES.get(int(_call(pynvml.nvmlDeviceGetComputeMode, device)))

    def set_compute_mode(self, device: Device, mode: ComputeMode) -> None:
        """For root only; at once, and until the next start of the driver or reset of the GPU."""
        number = next(number for number, known in COMPUTE_MODES.items() if known is mode)
        _call(pynvml.nvmlDeviceSetComputeMode, device, number)

    # --- MIG mode -------------------------------------------------------------------------------

    def mig_mode(self, device: Device) -> tuple[bool, bool]:
        """Current and pending."""
        current, pending = _call(pynvml.nvmlDeviceGetMigMode, device)
        return bool(current), bool(pending)

    def set_mig_mode(self, device: Device, enabled: bool) -> int:
        """Returns the activation status: 0, or the code that keeps the mode from being current."""
        return int(_call(pynvml.nvmlDeviceSetMigMode, device, int(enabled)))

    def changes_mode_without_reset(self, device: Device) -> bool:
        """Field 184, IS_RESETLESS_MIG_SUPPORTED; raises NotSupported where it is not known."""
        field = pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
        values: Any = _call(pynvml.nvmlDeviceGetFieldValues, device, [field])
        if values[0].nvmlReturn:
            raise driver_error(values[0].nvmlReturn, "nvmlDeviceGetFieldValues")
        return bool(values[0].value.uiVal)

    # --- GPU instances ----------------------------------------------------------------------------

    def gpu_instance_profile(self, device: Device, kind: int) -> GpuInstanceProfile:
        """`kind` is NVML's enumeration value, not the id. `name` is empty from older drivers;
        placements are another call.
        """
        wrapper = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
        info: Any = _newest(
            lambda: _call(wrapper, device, kind, version=2, name=f"{wrapper.__name__}V"),
            lambda: _call(wrapper, device, kind, version=1),
        )
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
            name=_text(getattr(info, "name", "")),
            placements=(),
        )

    def gpu_instance_placements(self, device: Device, profile_id: int) -> tuple[Placement, ...]:
        """Where instances of a profile can lie on the empty GPU."""
        places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
        count = c_uint(_MOST_PLACEMENTS)
        _call(
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements,
            device,
            profile_id,
            places,
            byref(count),
        )
        return tuple(sorted(_placement(place) for place in places[: count.value]))

    def gpu_instances(
        self, device: Device, profile_id: int, most: int
    ) -> tuple[GpuInstanceHandle, ...]:
        """The instances of one profile; there must not be more than `most`."""
        handles = (pynvml.c_nvmlGpuInstance_t * most)()
        count = c_uint(most)
        _call(pynvml.nvmlDeviceGetGpuInstances, device, profile_id, handles, byref(count))
        return tuple(GpuInstanceHandle(handle) for handle in handles[: count.value])

    def gpu_instance_by_id(self, device: Device, instance: int) -> GpuInstanceHandle:
        return GpuInstanceHandle(_call(pynvml.nvmlDeviceGetGpuInstanceById, device, instance))

    def gpu_instance_info(self, instance: GpuInstanceHandle) -> InstanceInfo:
        return _instance_info(_call(pynvml.nvmlGpuInstanceGetInfo, instance))

    def create_gpu_instance(
        self, device: Device, profile_id: int, placement: Placement
    ) -> GpuInstanceHandle:
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        return GpuInstanceHandle(
            _call(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, device, profile_id, byref(place))
        )

    def destroy_gpu_instance(self, instance: GpuInstanceHandle) -> None:
        _call(pynvml.nvmlGpuInstanceDestroy, instance)

    # --- compute instances ------------------------------------------------------------------------

    def compute_profile(self, instance: GpuInstanceHandle, kind: int) -> ComputeInstanceProfile:
        """As `gpu_instance_profile`."""
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        wrapper = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        info: Any = _newest(
            lambda: _call(wrapper, instance, kind, shared, version=2, name=f"{wrapper.__name__}V"),
            lambda: _call(wrapper, instance, kind, shared, version=1),
        )
        return ComputeInstanceProfile(
            id=info.id,
            slices=info.sliceCount,
            max_count=info.instanceCount,
            multiprocessors=info.multiprocessorCount,
        )

    def compute_placements(
        self, instance: GpuInstanceHandle, profile_id: int
    ) -> tuple[Placement, ...]:
        """Where compute instances of a profile can lie in the empty GPU instance."""
        places = (pynvml.c_nvmlComputeInstancePlacement_t * _MOST_PLACEMENTS)()
        count = c_uint(_MOST_PLACEMENTS)
        _call(
            pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements,
            instance,
            profile_id,
            places,
            byref(count),
        )
        return tuple(sorted(_placement(place) for place in places[: count.value]))

    def compute_instances(
        self, instance: GpuInstanceHandle, profile_id: int, most: int
    ) -> tuple[ComputeInstanceHandle, ...]:
        """The compute instances of one profile; there must not be more than `most`."""
        handles = (pynvml.c_nvmlComputeInstance_t * most)()
        count = c_uint(most)
        _call(
            pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile_id, handles, byref(count)
        )
        return tuple(ComputeInstanceHandle(handle) for handle in handles[: count.value])

    def compute_instance_by_id(
        self, instance: GpuInstanceHandle, compute: int
    ) -> ComputeInstanceHandle:
        return ComputeInstanceHandle(
            _call(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, compute)
        )

    def compute_instance_info(self, compute: ComputeInstanceHandle) -> InstanceInfo:
        return _instance_info(_call(pynvml.nvmlComputeInstanceGetInfo, compute))

    def create_compute_instance(
        self, instance: GpuInstanceHandle, profile_id: int
    ) -> ComputeInstanceHandle:
        """At a place that the driver chooses."""
        return ComputeInstanceHandle(
            _call(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile_id)
        )

    def destroy_compute_instance(self, compute: ComputeInstanceHandle) -> None:
        _call(pynvml.nvmlComputeInstanceDestroy, compute)

    # --- MIG devices ------------------------------------------------------------------------------

    def max_mig_devices(self, device: Device) -> int:
        return int(_call(pynvml.nvmlDeviceGetMaxMigDeviceCount, device))

    def mig_device(self, device: Device, index: int) -> Device:
        return Device(_call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, index))

    def gpu_instance_id(self, mig_device: Device) -> int:
        return int(_call(pynvml.nvmlDeviceGetGpuInstanceId, mig_device))

    def compute_instance_id(self, mig_device: Device) -> int:
        return int(_call(pynvml.nvmlDeviceGetComputeInstanceId, mig_device))

    def compute_slices(self, mig_device: Device) -> int:
        info: Any = _call(pynvml.nvmlDeviceGetAttributes, mig_device)
        return int(info.computeInstanceSliceCount)

    # --- processes --------------------------------------------------------------------------------

    def compute_processes(self, device: Device) -> tuple[Process, ...]:
        """Two calls where there are processes, one where there are none."""
        return self._processes(
            device,
            pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
            pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
        )

    def graphics_processes(self, device: Device) -> tuple[Process, ...]:
        """As `compute_processes`."""
        return self._processes(
            device,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
        )

    def mps_processes(self, device: Device) -> tuple[Process, ...]:
        """As `compute_processes`."""
        return self._processes(
            device,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
        )

    def process_name(self, pid: int) -> str:
        """What the driver calls a process: a path or a command."""
        return str(_call(pynvml.nvmlSystemGetProcessName, pid))

    def _processes(
        self,
        device: Device,
        newer: Callable[[Device], list[Any]],
        older: Callable[[Device], list[Any]],
    ) -> tuple[Process, ...]:
        found = _newest(lambda: self._list(newer, device), lambda: self._list(older, device))
        return tuple(
            Process(
                pid=process.pid,
                memory=process.usedGpuMemory,
                gpu_instance=_instance_id(process.gpuInstanceId),
                compute_instance=_instance_id(process.computeInstanceId),
            )
            for process in found
        )

    def _list(self, function: Callable[[Device], list[Any]], device: Device) -> list[Any]:
        """More processes may come between the call for their number and the one for them."""
        for _ in range(_GROWING - 1):
            try:
                return _call(function, device)
            except DriverError as error:
                if error.code != INSUFFICIENT_SIZE:
                    raise
        return _call(function, device)


def _newest(newer: Callable[[], Result], older: Callable[[], Result]) -> Result:
    """The answer of the newer function, or of the older one where the driver lacks the newer."""
    try:
        return newer()
    except DriverError as error:
        if error.code not in {FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH}:
            raise
    return older()


def _instance_info(info: Any) -> InstanceInfo:
    return InstanceInfo(info.id, info.profileId, _placement(info.placement))


def _placement(place: Any) -> Placement:
    return Placement(int(place.start), int(place.size))


def _instance_id(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
