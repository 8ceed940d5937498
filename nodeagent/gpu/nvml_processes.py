"""The processes on a device, as NVML lists them; in worker threads only, as all of `nvml`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml import Device, checked_call, newest
from nodeagent.gpu.nvml_errors import INSUFFICIENT_SIZE
from nodeagent.structs import Struct

_NO_INSTANCE = 0xFFFFFFFF  # the id that NVML gives to processes outside any instance
_GROWING = 3  # how often a list that grows between its two calls is asked for

ProcessKind = Literal["compute", "graphics", "mps"]
PROCESS_KINDS: Final[tuple[ProcessKind, ...]] = ("compute", "graphics", "mps")

_PROCESS_LISTS: Final = {
    "compute": (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    "graphics": (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
    "mps": (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
    ),
}


class NvmlProcess(Struct, frozen=True):
    """A process on a device; the ids are None outside MIG. `memory` in bytes."""

    pid: int
    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


def device_processes(device: Device, kind: ProcessKind) -> tuple[NvmlProcess, ...]:
    """Two calls where there are processes, one where there are none."""
    newer, older = _PROCESS_LISTS[kind]
    found = newest(partial(_growing, newer), partial(_growing, older), device)
    return tuple(
        NvmlProcess(
            pid=process.pid,
            memory=process.usedGpuMemory,
            gpu_instance=_instance_id(process.gpuInstanceId),
            compute_instance=_instance_id(process.computeInstanceId),
        )
        for process in found
    )


def _growing(wrapper: Callable[..., Any], device: Device) -> Any:
    """More processes may come between the call for their number and the one for them."""
    for _ in range(_GROWING - 1):
        try:
            return checked_call(wrapper, device)
        except DriverError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
    return checked_call(wrapper, device)


def _instance_id(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
