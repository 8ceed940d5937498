"""Errors of memory: counted, repaired, and what is out of use because of them."""

from ctypes import c_ulonglong
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Array, Out, versioned
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.devices import MigDevice
from nodeagent.simulation.functions.registry import (
    DeviceIn,
    UInt,
    UIntOut,
    ULongOut,
    WholeGpuIn,
    c_function,
    c_reading,
    number,
)
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.state import WHOLE

_AMPERE, _HOPPER = (8, 0), (9, 0)
_PAGE_CAUSES = ("singleBit", "doubleBit")
_VOLATILE_UNCORRECTED = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)


c_reading("nvmlDeviceGetEccMode", number("ecc.mode"), number("ecc.pending"))
c_reading(
    "nvmlDeviceGetSramEccErrorStatus",
    (versioned("nvmlEccSramErrorStatus_v1"), {"bThresholdExceeded": "ecc.sramThreshold"}),
    since=_AMPERE,
)
c_reading(
    "nvmlDeviceGetRowRemapperHistogram",
    (
        Out(pynvml.c_nvmlRowRemapperHistogramValues),
        {name: f"banks.{name}" for name in ("max", "high", "partial", "low", "none")},
    ),
    since=_AMPERE,
    instances=False,
)
c_reading(
    "nvmlDeviceGetRemappedRows",
    *map(number, ("rows.correctable", "rows.uncorrectable", "rows.pending", "rows.failed")),
    since=_AMPERE,
    instances=False,
)
c_reading(
    "nvmlDeviceGetRepairStatus",
    (
        Out(pynvml.c_nvmlRepairStatus_t, pynvml.nvmlRepairStatus_v1),
        {"bChannelRepairPending": "repair.channel", "bTpcRepairPending": "repair.tpc"},
    ),
    since=_HOPPER,
)
c_reading(
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    (versioned("nvmlUnrepairableMemory_v1"), {"unrepairableMemory": "memory.unrepairable"}),
    since=_AMPERE,
)


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
    pages = gpu.card.sensors.integer(f"pages.{_PAGE_CAUSES[cause]}")
    room, count.value = (count.value if addresses is not None else 0), pages
    if room < pages:
        raise Refused(Code.INSUFFICIENT_SIZE)
    if addresses is not None:
        addresses.demand(pages)
        for index in range(pages):
            addresses.write(index, 0x1000 * (index + 1))
