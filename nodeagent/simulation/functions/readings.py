"""What can be read from a device: memory, utilisation, processes, field values."""

import time
from typing import Annotated, Any

import pynvml

from nodeagent.simulation import field_numbers
from nodeagent.simulation.admission import memory_of
from nodeagent.simulation.arguments import Array, Out, versioned
from nodeagent.simulation.card import MIB, Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import Device, GpuInstanceDevice, MigDevice
from nodeagent.simulation.functions.registry import DeviceIn, UInt, UIntOut, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import ONLY_PARENT, GpuInstance, Process, ProcessKind

_ENGINE_UTILISATIONS = (
    ("nvmlDeviceGetEncoderUtilization", "utilization.encoder"),
    ("nvmlDeviceGetDecoderUtilization", "utilization.decoder"),
    ("nvmlDeviceGetJpgUtilization", "utilization.jpeg"),
    ("nvmlDeviceGetOfaUtilization", "utilization.ofa"),
)
_PROCESS_LISTS = {
    "nvmlDeviceGetComputeRunningProcesses": ProcessKind.COMPUTE,
    "nvmlDeviceGetGraphicsRunningProcesses": ProcessKind.GRAPHICS,
    "nvmlDeviceGetMPSComputeRunningProcesses": ProcessKind.MPS,
}
_UNKNOWN_MEMORY = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_MAX_UNSIGNED_INT = 0xFFFF_FFFF
_SAMPLING_PERIOD = 167_000  # microseconds, as drivers report it


@c_function(Code.NO_PERMISSION)
def nvmlDeviceGetMemoryInfo(
    session: Session, device: DeviceIn, memory: Annotated[Any, Out(pynvml.c_nvmlMemory_t)]
) -> None:
    """Version 1 counts what the driver reserves as used."""
    total, used, reserved = _memory(session, device)
    memory.total, memory.used, memory.free = total, used + reserved, total - used - reserved


@c_function(Code.NO_PERMISSION)
def nvmlDeviceGetMemoryInfo_v2(
    session: Session, device: DeviceIn, memory: Annotated[Any, versioned("nvmlMemory_v2")]
) -> None:
    total, used, reserved = _memory(session, device)
    memory.total, memory.reserved = total, reserved
    memory.used, memory.free = used, total - used - reserved


@c_function(Code.NO_PERMISSION, Code.NOT_SUPPORTED)
def nvmlDeviceGetBAR1MemoryInfo(
    session: Session, device: DeviceIn, memory: Annotated[Any, Out(pynvml.c_nvmlBAR1Memory_t)]
) -> None:
    _require_aggregate(session, device)
    instance = device.instance if isinstance(device, GpuInstanceDevice) else None
    memory.bar1Total = _bar1(device.card, instance)
    memory.bar1Used = min(device.card.sensors.integer("bar1.used"), memory.bar1Total)
    memory.bar1Free = memory.bar1Total - memory.bar1Used


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetUtilizationRates(
    session: Session, device: DeviceIn, rates: Annotated[Any, Out(pynvml.c_nvmlUtilization_t)]
) -> None:
    _require_no_mig(device)
    rates.gpu = device.card.sensors.integer("utilization.gpu")
    rates.memory = device.card.sensors.integer("utilization.memory")


def _declare_engine(name: str, figure: str) -> None:
    @c_function(Code.NOT_SUPPORTED, name=name)
    def get_utilization(
        session: Session, device: DeviceIn, percent: UIntOut, period: UIntOut
    ) -> None:
        _require_no_mig(device)
        percent.value, period.value = device.card.sensors.integer(figure), _SAMPLING_PERIOD


for _name, _figure in _ENGINE_UTILISATIONS:
    _declare_engine(_name, _figure)


@c_function(Code.NOT_SUPPORTED, Code.NOT_FOUND, Code.INSUFFICIENT_SIZE)
def nvmlDeviceGetProcessUtilization(
    session: Session,
    device: DeviceIn,
    samples: Annotated[Any, Array(pynvml.c_nvmlProcessUtilizationSample_t)],
    count: UIntOut,
    since: UInt,
) -> None:
    """One sample for each process whose figures were set; none when no process is busy."""
    _require_no_mig(device)
    integer, now = device.card.sensors.integer, time.time_ns() // 1000
    busy = [
        {
            "pid": p.pid,
            "timeStamp": now,
            "smUtil": sm,
            "memUtil": integer(f"process.{p.pid}.memory"),
        }
        for p in device.card.state.processes
        if (sm := integer(f"process.{p.pid}.sm")) and now > since
    ]
    if not busy:
        raise Refused(Code.NOT_FOUND)
    room, count.value = (count.value if samples is not None else 0), len(busy)
    if room < len(busy):
        raise Refused(Code.INSUFFICIENT_SIZE)
    samples.fill(busy)


def _declare_processes(name: str, kind: ProcessKind) -> None:
    @c_function(Code.INSUFFICIENT_SIZE, Code.NO_PERMISSION, Code.NOT_SUPPORTED, name=name)
    def get_processes(
        session: Session,
        device: DeviceIn,
        count: UIntOut,
        infos: Annotated[Any, Array(pynvml.c_nvmlProcessInfo_v2_t)],
    ) -> None:
        """`count` goes in as the room and comes out as the number there is."""
        _require_aggregate(session, device)
        place = (device.instance.id, device.compute.id) if isinstance(device, MigDevice) else ()
        found = [p for p in device.card.processes(*place) if p.kind is kind]
        room, count.value = (count.value if infos is not None else 0), len(found)
        if infos is not None:
            infos.demand(room)
        if room < len(found):
            raise Refused(Code.INSUFFICIENT_SIZE)
        if infos is not None:
            zero = session.node.switches.zero_outside_mig and not device.card.state.mig
            none = 0 if zero else ONLY_PARENT
            infos.fill([_process_info(process, none) for process in found])


def _process_info(process: Process, none: int) -> dict[str, int]:
    return {
        "pid": process.pid,
        "usedGpuMemory": _UNKNOWN_MEMORY if process.memory is None else process.memory,
        "gpuInstanceId": none if process.instance is None else process.instance,
        "computeInstanceId": none if process.compute is None else process.compute,
    }


for _name, _kind in _PROCESS_LISTS.items():
    for _version in ("_v2", "_v3"):  # the same structure in both
        _declare_processes(_name + _version, _kind)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetFieldValues(
    session: Session,
    device: DeviceIn,
    count: UInt,
    values: Annotated[Any, Array(pynvml.c_nvmlFieldValue_t)],
) -> None:
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
    if not field_numbers.is_reported(card, field):
        raise Refused(Code.NOT_SUPPORTED)
    if not field_numbers.link_fits(card, field, scope):
        raise Refused(Code.INVALID_ARGUMENT)
    return field_numbers.value_of(card, field, scope)


def _put(value: Any, found: float) -> None:
    if isinstance(found, float):
        value.valueType, value.value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, found
    elif found < 0:
        value.valueType, value.value.siVal = pynvml.NVML_VALUE_TYPE_SIGNED_INT, found
    elif found > _MAX_UNSIGNED_INT:
        value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, found
    else:
        value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, int(found)


def _memory(session: Session, device: Device) -> tuple[int, int, int]:
    """Bytes: total, used without what is reserved, reserved."""
    _require_aggregate(session, device)
    if isinstance(device, GpuInstanceDevice):
        return (*memory_of(device.card, device.instance), 0)
    return (*memory_of(device.card), device.card.board.reserved_mib * MIB)


def _bar1(card: Card, instance: GpuInstance | None) -> int:
    """Bytes. An instance has its share of memory slices, less 1 MiB (as on A100, H100)."""
    whole = card.board.bar1_mib
    if instance is None or not whole:
        return whole * MIB
    return (whole * instance.size // card.board.memory_slices - 1) * MIB


def _require_aggregate(session: Session, device: Device) -> None:
    """With MIG on, figures of the whole card are for privileged callers."""
    if device.card.state.mig and not isinstance(device, GpuInstanceDevice):
        session.require_privilege()


def _require_no_mig(device: Device) -> None:
    """Utilisation is reported neither for a GPU in MIG mode nor for a MIG device."""
    if device.card.state.mig:
        raise Refused(Code.NOT_SUPPORTED)
