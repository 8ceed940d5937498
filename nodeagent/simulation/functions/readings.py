"""What can be read from a device: memory, utilisation, field values."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103, PLR0917

from __future__ import annotations

import time
from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Array, Number, Out
from nodeagent.simulation.card import MIB
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, GpuInstanceView

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_ENGINE_UTILISATIONS = (
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
)
_SAMPLING_PERIOD = 167_000  # microseconds, as drivers report it


@c_function(
    "nvmlDeviceGetMemoryInfo", DEVICE, Out(pynvml.c_nvmlMemory_t), errors=(Code.NO_PERMISSION,)
)
def get_memory_info(library: Session, device: Device, memory: Any) -> None:
    """Version 1 counts what the driver reserves as used."""
    total, used, reserved = _memory(library, device)
    memory.total, memory.used, memory.free = total, used + reserved, total - used - reserved


@c_function(
    "nvmlDeviceGetMemoryInfo_v2",
    DEVICE,
    Out(pynvml.c_nvmlMemory_v2_t, pynvml.nvmlMemory_v2),
    errors=(Code.NO_PERMISSION, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_memory_info_v2(library: Session, device: Device, memory: Any) -> None:
    total, used, reserved = _memory(library, device)
    memory.total, memory.reserved = total, reserved
    memory.used, memory.free = used, total - used - reserved


@c_function(
    "nvmlDeviceGetBAR1MemoryInfo",
    DEVICE,
    Out(pynvml.c_nvmlBAR1Memory_t),
    errors=(Code.NO_PERMISSION, Code.NOT_SUPPORTED),
)
def get_bar1_memory_info(library: Session, device: Device, memory: Any) -> None:
    _require_aggregate(library, device)
    instance = device.instance if isinstance(device, GpuInstanceView) else None
    memory.bar1Total = device.card.bar1(instance)
    memory.bar1Used = min(MIB, memory.bar1Total)
    memory.bar1Free = memory.bar1Total - memory.bar1Used


@c_function(
    "nvmlDeviceGetUtilizationRates", DEVICE, Out(pynvml.c_nvmlUtilization_t), errors=_NOT_SUPPORTED
)
def get_utilization_rates(library: Session, device: Device, rates: Any) -> None:
    _require_no_mig(device)
    rates.gpu = rates.memory = 0


def _declare_engine(name: str) -> None:
    @c_function(name, DEVICE, Out(c_uint), Out(c_uint), errors=_NOT_SUPPORTED)
    def get_utilization(library: Session, device: Device, percent: c_uint, period: c_uint) -> None:
        _require_no_mig(device)
        percent.value, period.value = 0, _SAMPLING_PERIOD


@c_function(
    "nvmlDeviceGetProcessUtilization",
    DEVICE,
    Array(pynvml.c_nvmlProcessUtilizationSample_t),
    Out(c_uint),
    Number(),
    errors=(Code.NOT_SUPPORTED, Code.NOT_FOUND),
)
def get_process_utilization(
    library: Session, device: Device, samples: Any, count: c_uint, since: int
) -> None:
    """Simulated processes keep no engine busy, so there is never a sample."""
    _require_no_mig(device)
    raise Refused(Code.NOT_FOUND)


for _name in _ENGINE_UTILISATIONS:
    _declare_engine(_name)


@c_function(
    "nvmlDeviceGetRemappedRows",
    GPU_ONLY,
    Out(c_uint),
    Out(c_uint),
    Out(c_uint),
    Out(c_uint),
    errors=_NOT_SUPPORTED,
)
def get_remapped_rows(
    library: Session,
    gpu: Device,
    correctable: c_uint,
    uncorrectable: c_uint,
    pending: c_uint,
    failure: c_uint,
) -> None:
    """Not told while a GPU in MIG mode has instances."""
    if gpu.card.state.instances or gpu.card.board.compute_capability < (8, 0):
        raise Refused(Code.NOT_SUPPORTED)
    correctable.value = uncorrectable.value = pending.value = failure.value = 0


@c_function(
    "nvmlDeviceGetFieldValues",
    DEVICE,
    Number(),
    Array(pynvml.c_nvmlFieldValue_t),
    errors=_NOT_SUPPORTED,
)
def get_field_values(library: Session, device: Device, count: int, values: Any) -> None:
    """Each entry has its own return code."""
    if values is None:
        raise Refused(Code.INVALID_ARGUMENT)
    values.demand(count)
    for index in range(count):
        value = values[index]
        value.timestamp, value.latencyUsec = time.time_ns() // 1000, 1
        try:
            found = _field(device, value.fieldId)
        except Refused as refusal:
            value.nvmlReturn = refusal.code
            continue
        value.nvmlReturn = Code.SUCCESS
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = found


def _field(device: Device, field: int) -> int:
    board = device.card.board
    if field == pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED and board.has_mig:
        return not board.mode_change_needs_reset
    raise Refused(Code.NOT_SUPPORTED)


def _memory(library: Session, device: Device) -> tuple[int, int, int]:
    """Bytes: total, used without what is reserved, reserved."""
    _require_aggregate(library, device)
    if isinstance(device, GpuInstanceView):
        return (*device.card.memory(device.instance), 0)
    return (*device.card.memory(), device.card.board.reserved_mib * MIB)


def _require_aggregate(library: Session, device: Device) -> None:
    """With MIG on, figures of the whole card are for privileged callers."""
    if device.card.state.mig and not isinstance(device, GpuInstanceView):
        library.require_privilege()


def _require_no_mig(device: Device) -> None:
    """Utilisation is told neither of a GPU in MIG mode nor of a MIG device."""
    if device.card.state.mig:
        raise Refused(Code.NOT_SUPPORTED)
