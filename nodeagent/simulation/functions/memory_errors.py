"""Errors of memory: counted, repaired, and what is out of use because of them."""

from ctypes import c_ulonglong
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Array, Out
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import MigDevice
from nodeagent.simulation.functions.registry import (
    DeviceIn,
    UInt,
    UIntOut,
    ULongOut,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import WHOLE

_AMPERE, _HOPPER = (8, 0), (9, 0)
_PAGE_CAUSES = ("singleBit", "doubleBit")
_VOLATILE_UNCORRECTED = (
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    pynvml.NVML_VOLATILE_ECC,
)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetEccMode(
    session: Session, gpu: WholeGpuIn, current: UIntOut, pending: UIntOut
) -> None:
    current.value = gpu.card.sensors.integer("ecc.mode")
    pending.value = gpu.card.sensors.integer("ecc.pending")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMemoryErrorCounter(
    session: Session, device: DeviceIn, kind: UInt, counter: UInt, place: UInt, count: ULongOut
) -> None:
    """Of a MIG device: volatile uncorrected errors outside DRAM only, as the header says."""
    if kind > 1 or counter > 1 or place >= pynvml.NVML_MEMORY_LOCATION_COUNT:
        raise Refused(Code.INVALID_ARGUMENT)
    serial = WHOLE
    if isinstance(device, MigDevice):
        serial = device.instance.serial
        dram = place == pynvml.NVML_MEMORY_LOCATION_DRAM
        if (kind, counter) != _VOLATILE_UNCORRECTED or dram:
            raise Refused(Code.NOT_SUPPORTED)
    corrected = "corrected" if kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else "uncorrected"
    since = "volatile" if counter == pynvml.NVML_VOLATILE_ECC else "aggregate"
    name = f"ecc.{corrected}.{since}.{place}"
    count.value = device.card.sensors.integer(name, 0, serial)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetSramEccErrorStatus(
    session: Session,
    gpu: WholeGpuIn,
    status: Annotated[
        Any, Out(pynvml.c_nvmlEccSramErrorStatus_v1_t, pynvml.nvmlEccSramErrorStatus_v1)
    ],
) -> None:
    gpu.card.require_capability(_AMPERE)
    status.bThresholdExceeded = gpu.card.sensors.integer("ecc.sramThreshold")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetRowRemapperHistogram(
    session: Session,
    gpu: WholeGpuIn,
    values: Annotated[Any, Out(pynvml.c_nvmlRowRemapperHistogramValues)],
) -> None:
    gpu.card.require_capability(_AMPERE)
    _require_no_instances(gpu.card)
    for name in ("max", "high", "partial", "low", "none"):
        setattr(values, name, gpu.card.sensors.integer(f"banks.{name}"))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetRemappedRows(
    session: Session,
    gpu: WholeGpuIn,
    correctable: UIntOut,
    uncorrectable: UIntOut,
    pending: UIntOut,
    failure: UIntOut,
) -> None:
    """Not reported while a GPU in MIG mode has instances."""
    gpu.card.require_capability(_AMPERE)
    _require_no_instances(gpu.card)
    correctable.value = gpu.card.sensors.integer("rows.correctable")
    uncorrectable.value = gpu.card.sensors.integer("rows.uncorrectable")
    pending.value = gpu.card.sensors.integer("rows.pending")
    failure.value = gpu.card.sensors.integer("rows.failed")


@c_function(Code.NOT_SUPPORTED, Code.INSUFFICIENT_SIZE)
def nvmlDeviceGetRetiredPages(
    session: Session,
    gpu: WholeGpuIn,
    cause: UInt,
    count: UIntOut,
    addresses: Annotated[Any, Array(c_ulonglong)],
) -> None:
    """Before Ampere."""
    if gpu.card.board.compute_capability >= _AMPERE:
        raise Refused(Code.NOT_SUPPORTED)
    if cause >= len(_PAGE_CAUSES):
        raise Refused(Code.INVALID_ARGUMENT)
    there = gpu.card.sensors.integer(f"pages.{_PAGE_CAUSES[cause]}")
    room, count.value = (count.value if addresses is not None else 0), there
    if room < there:
        raise Refused(Code.INSUFFICIENT_SIZE)
    if addresses is not None:
        addresses.demand(there)
        for index in range(there):
            addresses.write(index, 0x1000 * (index + 1))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetRepairStatus(
    session: Session,
    gpu: WholeGpuIn,
    status: Annotated[Any, Out(pynvml.c_nvmlRepairStatus_t, pynvml.nvmlRepairStatus_v1)],
) -> None:
    gpu.card.require_capability(_HOPPER)
    status.bChannelRepairPending = gpu.card.sensors.integer("repair.channel")
    status.bTpcRepairPending = gpu.card.sensors.integer("repair.tpc")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetUnrepairableMemoryFlag_v1(
    session: Session,
    gpu: WholeGpuIn,
    status: Annotated[
        Any, Out(pynvml.c_nvmlUnrepairableMemory_v1_t, pynvml.nvmlUnrepairableMemory_v1)
    ],
) -> None:
    gpu.card.require_capability(_AMPERE)
    status.unrepairableMemory = gpu.card.sensors.integer("memory.unrepairable")


def _require_no_instances(card: Card) -> None:
    if card.state.instances:
        raise Refused(Code.NOT_SUPPORTED)
