"""What can be read from a device: memory, utilisation, field values."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

import time
from ctypes import c_uint
from typing import Any

import pynvml

from nodeagent.simulation import field_numbers
from nodeagent.simulation.arguments import Array, Number, Out
from nodeagent.simulation.card import MIB
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, GpuInstanceView, MigDevice

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_ENGINE_UTILISATIONS = (
    ("nvmlDeviceGetEncoderUtilization", "utilization.encoder"),
    ("nvmlDeviceGetDecoderUtilization", "utilization.decoder"),
    ("nvmlDeviceGetJpgUtilization", "utilization.jpeg"),
    ("nvmlDeviceGetOfaUtilization", "utilization.ofa"),
)
_MOST_UNSIGNED_INT = 0xFFFF_FFFF
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
    used = int(device.card.sensors.value("bar1.used", MIB))
    memory.bar1Used = min(used, memory.bar1Total)
    memory.bar1Free = memory.bar1Total - memory.bar1Used


@c_function(
    "nvmlDeviceGetUtilizationRates", DEVICE, Out(pynvml.c_nvmlUtilization_t), errors=_NOT_SUPPORTED
)
def get_utilization_rates(library: Session, device: Device, rates: Any) -> None:
    _require_no_mig(device)
    sensors = device.card.sensors
    busy = round(100 * sensors.load)
    rates.gpu = int(sensors.value("utilization.gpu", busy))
    rates.memory = int(sensors.value("utilization.memory", busy * 3 // 10))


def _declare_engine(name: str, figure: str) -> None:
    @c_function(name, DEVICE, Out(c_uint), Out(c_uint), errors=_NOT_SUPPORTED)
    def get_utilization(library: Session, device: Device, percent: c_uint, period: c_uint) -> None:
        _require_no_mig(device)
        percent.value, period.value = int(device.card.sensors.value(figure, 0)), _SAMPLING_PERIOD


@c_function(
    "nvmlDeviceGetProcessUtilization",
    DEVICE,
    Array(pynvml.c_nvmlProcessUtilizationSample_t),
    Out(c_uint),
    Number(),
    errors=(Code.NOT_SUPPORTED, Code.NOT_FOUND, Code.INSUFFICIENT_SIZE),
)
def get_process_utilization(
    library: Session, device: Device, samples: Any, count: c_uint, since: int
) -> None:
    """One sample for each process whose figures were set; none when no process is busy."""
    _require_no_mig(device)
    value_of, now = device.card.sensors.value, time.time_ns() // 1000
    busy = [
        (process.pid, int(sm), int(value_of(f"process.{process.pid}.memory", 0)))
        for process in device.card.state.processes
        if (sm := value_of(f"process.{process.pid}.sm", 0)) and now > since
    ]
    if not busy:
        raise Refused(Code.NOT_FOUND)
    room, count.value = (count.value if samples is not None else 0), len(busy)
    if room < len(busy):
        raise Refused(Code.INSUFFICIENT_SIZE)
    samples.demand(len(busy))
    for index, (pid, sm, memory) in enumerate(busy):
        samples[index].pid, samples[index].timeStamp = pid, now
        samples[index].smUtil, samples[index].memUtil = sm, memory


for _name, _figure in _ENGINE_UTILISATIONS:
    _declare_engine(_name, _figure)


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
            found = _field(device, value.fieldId, value.scopeId)
        except Refused as refusal:
            value.nvmlReturn = refusal.code
            continue
        value.nvmlReturn = Code.SUCCESS
        _put(value, found)


def _field(device: Device, field: int, scope: int) -> int | float:
    card = device.card
    if isinstance(device, MigDevice):
        raise Refused(Code.NOT_SUPPORTED)
    if field == pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED and card.board.has_mig:
        return not card.board.mode_change_needs_reset
    if not field_numbers.is_told(card, field):
        raise Refused(Code.NOT_SUPPORTED)
    if not field_numbers.link_fits(card, field, scope):
        raise Refused(Code.INVALID_ARGUMENT)
    return field_numbers.value_of(card, field, scope)


def _put(value: Any, found: float) -> None:
    if isinstance(found, float):
        value.valueType, value.value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, found
    elif found < 0:
        value.valueType, value.value.siVal = pynvml.NVML_VALUE_TYPE_SIGNED_INT, found
    elif found > _MOST_UNSIGNED_INT:
        value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, found
    else:
        value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, int(found)


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
    """Utilisation is reported neither for a GPU in MIG mode nor for a MIG device."""
    if device.card.state.mig:
        raise Refused(Code.NOT_SUPPORTED)
