"""Errors of memory: counted, repaired, and what is out of use because of them."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103, PLR0917

from __future__ import annotations

from ctypes import c_uint, c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.activity import WHOLE
from nodeagent.simulation.arguments import Array, Number, Out
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import DEVICE, GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device, MigDevice

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_AMPERE, _HOPPER = (8, 0), (9, 0)
_BANKS = 640
_PAGE_CAUSES = ("singleBit", "doubleBit")
_VOLATILE_UNCORRECTED = (
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    pynvml.NVML_VOLATILE_ECC,
)


@c_function("nvmlDeviceGetEccMode", GPU_ONLY, Out(c_uint), Out(c_uint), errors=_NOT_SUPPORTED)
def get_ecc_mode(library: Session, gpu: Device, current: c_uint, pending: c_uint) -> None:
    current.value = int(gpu.card.sensors.named("ecc.mode"))
    pending.value = int(gpu.card.sensors.named("ecc.pending"))


@c_function(
    "nvmlDeviceGetMemoryErrorCounter",
    DEVICE,
    Number(),
    Number(),
    Number(),
    Out(c_ulonglong),
    errors=_NOT_SUPPORTED,
)
def get_memory_error_counter(
    library: Session, device: Device, kind: int, counter: int, place: int, count: c_ulonglong
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
    count.value = int(device.card.sensors.value(name, 0, serial))


@c_function(
    "nvmlDeviceGetSramEccErrorStatus",
    GPU_ONLY,
    Out(pynvml.c_nvmlEccSramErrorStatus_v1_t, pynvml.nvmlEccSramErrorStatus_v1),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_sram_status(library: Session, gpu: Device, status: Any) -> None:
    gpu.card.require_capability(_AMPERE)
    status.bThresholdExceeded = int(gpu.card.sensors.value("ecc.sramThreshold", 0))


@c_function(
    "nvmlDeviceGetRowRemapperHistogram",
    GPU_ONLY,
    Out(pynvml.c_nvmlRowRemapperHistogramValues),
    errors=_NOT_SUPPORTED,
)
def get_histogram(library: Session, gpu: Device, values: Any) -> None:
    gpu.card.require_capability(_AMPERE)
    _require_no_instances(gpu.card)
    value_of = gpu.card.sensors.value
    values.max = int(value_of("banks.max", _BANKS))
    values.high, values.partial = int(value_of("banks.high", 0)), int(value_of("banks.partial", 0))
    values.low, values.none = int(value_of("banks.low", 0)), int(value_of("banks.none", 0))


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
    """Not reported while a GPU in MIG mode has instances."""
    gpu.card.require_capability(_AMPERE)
    _require_no_instances(gpu.card)
    named = gpu.card.sensors.named
    correctable.value = int(named("rows.correctable"))
    uncorrectable.value = int(named("rows.uncorrectable"))
    pending.value, failure.value = int(named("rows.pending")), int(named("rows.failed"))


@c_function(
    "nvmlDeviceGetRetiredPages",
    GPU_ONLY,
    Number(),
    Out(c_uint),
    Array(c_ulonglong),
    errors=(*_NOT_SUPPORTED, Code.INSUFFICIENT_SIZE),
)
def get_retired_pages(
    library: Session, gpu: Device, cause: int, count: c_uint, addresses: Any
) -> None:
    """Before Ampere."""
    if gpu.card.board.compute_capability >= _AMPERE:
        raise Refused(Code.NOT_SUPPORTED)
    if cause >= len(_PAGE_CAUSES):
        raise Refused(Code.INVALID_ARGUMENT)
    there = int(gpu.card.sensors.named(f"pages.{_PAGE_CAUSES[cause]}"))
    room, count.value = (count.value if addresses is not None else 0), there
    if room < there:
        raise Refused(Code.INSUFFICIENT_SIZE)
    if addresses is not None:
        addresses.demand(there)
        for index in range(there):
            addresses.write(index, 0x1000 * (index + 1))


@c_function(
    "nvmlDeviceGetRepairStatus",
    GPU_ONLY,
    Out(pynvml.c_nvmlRepairStatus_t, pynvml.nvmlRepairStatus_v1),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_repair_status(library: Session, gpu: Device, status: Any) -> None:
    gpu.card.require_capability(_HOPPER)
    status.bChannelRepairPending = int(gpu.card.sensors.value("repair.channel", 0))
    status.bTpcRepairPending = int(gpu.card.sensors.value("repair.tpc", 0))


@c_function(
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    GPU_ONLY,
    Out(pynvml.c_nvmlUnrepairableMemory_v1_t, pynvml.nvmlUnrepairableMemory_v1),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_unrepairable(library: Session, gpu: Device, status: Any) -> None:
    gpu.card.require_capability(_AMPERE)
    status.unrepairableMemory = int(gpu.card.sensors.value("memory.unrepairable", 0))


def _require_no_instances(card: Card) -> None:
    if card.state.instances:
        raise Refused(Code.NOT_SUPPORTED)
