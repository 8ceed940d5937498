"""Reads a GPU's health: the driver calls behind each value of `health.readings`."""

from collections.abc import Iterator
from typing import Any, Final

import pynvml

from nodeagent.gpu.nvml import COMPUTE_MODES, MAX_LINKS, InstanceInfo, call
from nodeagent.gpu.nvml_calls import FieldId, filled
from nodeagent.health.readings import (
    Fabric,
    GpuReading,
    InstanceReading,
    LinkReading,
    RemappedRows,
    RetiredPages,
)
from nodeagent.structs import replace
from nodeagent.telemetry.nvml_reader import NvmlReader

# Values by the name that they have in a GpuReading, and where each comes from.
_FAST_FIELDS: Final = {"memory_temperature": pynvml.NVML_FI_DEV_MEMORY_TEMP}
_FAST_CALLS: Final = {
    "temperature": ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    "temperature_margin": ("nvmlDeviceGetMarginTemperature",),
    "clock_reasons": ("nvmlDeviceGetCurrentClocksEventReasons",),
    "power": ("nvmlDeviceGetPowerUsage",),
}
_SLOW_FIELDS: Final = {
    "recovery_action": pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    "ecc_uncorrected": pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    "bank_remap_pending": pynvml.NVML_FI_DEV_PENDING_BANK_REMAPPING,
    "held_by_power": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "held_by_heat": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "held_by_software_heat": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "held_by_hardware_heat": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "held_by_power_brake": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
_SLOW_CALLS: Final = {
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "memory_unrepairable": ("nvmlDeviceGetUnrepairableMemoryFlag_v1",),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit",),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption",),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter",),
}
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_CONSTANT_CALLS: Final = {  # asked until there is an answer
    "slowdown_temperature": (_THRESHOLD, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    "memory_temperature_max": (_THRESHOLD, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth",),
}
_FLAGS = frozenset({"bank_remap_pending", "memory_unrepairable"})
_PAGE_FIELDS: Final = (
    pynvml.NVML_FI_DEV_RETIRED_SBE,
    pynvml.NVML_FI_DEV_RETIRED_DBE,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
)
_LINK_FIELDS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)
_BUSY_STATES = (pynvml.NVML_PSTATE_0, pynvml.NVML_PSTATE_1)
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"


def health_fields(*, slow: bool) -> Iterator[FieldId]:
    """The field values that `read_health` needs."""
    yield from ((number, 0) for number in _FAST_FIELDS.values())
    if slow:
        yield from ((number, 0) for number in (*_SLOW_FIELDS.values(), *_PAGE_FIELDS))
        yield from ((number, link) for number in _LINK_FIELDS for link in range(MAX_LINKS))


def read_health(reader: NvmlReader, reading: GpuReading, *, slow: bool) -> GpuReading:
    """Complete `reading` with what is read every time and, if `slow`, with all the rest.

    The field values must have been read.
    """
    fields = _FAST_FIELDS | (_SLOW_FIELDS if slow else {})
    calls = _FAST_CALLS | (_SLOW_CALLS if slow else {})
    found: dict[str, Any] = {
        **{name: _whole(reader.field(number)) for name, number in fields.items()},
        **{name: reader.call(*call) for name, call in calls.items()},
        **{name: _once(reader, *call) for name, call in _CONSTANT_CALLS.items()},
    }
    found |= {name: bool(found[name]) for name in _FLAGS & found.keys() if found[name] is not None}
    if slow:
        found["compute_mode"] = COMPUTE_MODES.get(found["compute_mode"])
    reading = replace(reading, complete=slow, **found)
    return _with_structures(reader, reading) if slow else reading


def _with_structures(reader: NvmlReader, reading: GpuReading) -> GpuReading:
    modes = reader.call("nvmlDeviceGetEccMode")
    rows = reader.call("nvmlDeviceGetRemappedRows")
    single, double, pending = map(reader.field, _PAGE_FIELDS)
    sram = reader.structure("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    banks = reader.call("nvmlDeviceGetRowRemapperHistogram")
    repair = reader.call("nvmlDeviceGetRepairStatus")
    corrupt = pynvml.NVML_ERROR_CORRUPTED_INFOROM
    valid = reader.once(  # it reads flash
        ("inforom",), lambda: reader.verdict("nvmlDeviceValidateInforom", corrupt)
    )
    return replace(
        _with_pcie(reader, reading),
        inforom_corrupt=None if valid is None else not valid,
        ecc_mode=None if modes is None else bool(modes[0]),
        ecc_pending_mode=None if modes is None else bool(modes[1]),
        sram_threshold_exceeded=None if sram is None else bool(sram.bThresholdExceeded),
        rows=rows and RemappedRows(int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])),
        banks_without_spare_row=None if banks is None else banks.none,
        banks_with_few_spare_rows=None if banks is None else banks.low,
        pages=None
        if single is None or double is None
        else RetiredPages(int(single), int(double), bool(pending)),
        channel_repair_pending=None if repair is None else bool(repair[0]),
        tpc_repair_pending=None if repair is None else bool(repair[1]),
        nvlinks=tuple(_nvlinks(reader)),
        fabric=_fabric(reader),
    )


def _with_pcie(reader: NvmlReader, reading: GpuReading) -> GpuReading:
    """The link as it is under load, if the GPU is busy before and after it is read."""
    state = "nvmlDeviceGetPerformanceState"
    before = reader.call(state)
    generation = reader.call("nvmlDeviceGetCurrPcieLinkGeneration")
    width = reader.call("nvmlDeviceGetCurrPcieLinkWidth")
    after = reader.ask((state, "after"), lambda: call(state, reader.device))
    known = before is not None and after is not None
    return replace(
        reading,
        pcie_generation=generation,
        pcie_width=width,
        under_load=before in _BUSY_STATES and after in _BUSY_STATES if known else None,
    )


def _nvlinks(reader: NvmlReader) -> Iterator[LinkReading]:
    for link in range(MAX_LINKS):
        found = [_whole(reader.field(field, link)) for field in _LINK_FIELDS]
        if any(value is not None for value in found):
            up, replays, recoveries, crc = found
            yield LinkReading(link, None if up is None else bool(up), replays, recoveries, crc)


def _fabric(reader: NvmlReader) -> Fabric | None:
    info: Any = reader.structure(_FABRIC, "c_nvmlGpuFabricInfo_v3_t")
    if info is None:  # older drivers know the second version only
        info = reader.ask(
            (_FABRIC, "v2"), lambda: filled(_FABRIC, "c_nvmlGpuFabricInfo_v2_t", reader.device)
        )
    if info is None:
        return None
    summary = getattr(info, "healthSummary", 0)
    return Fabric(info.state, info.status, info.healthMask, int(summary))


def read_instance(reader: NvmlReader, info: InstanceInfo) -> InstanceReading:
    """A GPU instance, by the handle of a MIG device in it."""
    return InstanceReading(
        instance=info.id,
        placement=info.placement,
        uncorrected=reader.call(
            "nvmlDeviceGetMemoryErrorCounter",
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
            pynvml.NVML_MEMORY_LOCATION_SRAM,
        ),
    )


def _once(reader: NvmlReader, function: str, *arguments: object) -> Any:
    return reader.once((function, *arguments), lambda: call(function, reader.device, *arguments))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
