"""Reads a GPU's health: the driver calls behind each value of `health.readings`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pynvml

from nodeagent.gpu.nvml import MOST_LINKS, InstanceInfo, call
from nodeagent.gpu.nvml_calls import FieldId, filled
from nodeagent.health.readings import (
    Ecc,
    EccErrors,
    Fabric,
    GpuReading,
    InstanceReading,
    Memory,
    NvLink,
    Pcie,
    Power,
    RemappedRows,
    RetiredPages,
    RowHistogram,
    Temperature,
    Throttling,
)
from nodeagent.telemetry.fields import verdict_of
from nodeagent.telemetry.nvml_reader import NvmlReader

_FAST_FIELDS: Final = (pynvml.NVML_FI_DEV_MEMORY_TEMP,)
_SLOW_FIELDS: Final = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_RETIRED_SBE,
    pynvml.NVML_FI_DEV_RETIRED_DBE,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
    pynvml.NVML_FI_DEV_PENDING_BANK_REMAPPING,
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
)
_LINK_FIELDS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)
_BUSY_STATES = (pynvml.NVML_PSTATE_0, pynvml.NVML_PSTATE_1)
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"


def health_fields(*, slow: bool) -> Iterator[FieldId]:
    """The field values that `read_health` needs."""
    for field in (*_FAST_FIELDS, *(_SLOW_FIELDS if slow else ())):
        yield field, 0
    if slow:
        for field in _LINK_FIELDS:
            for link in range(MOST_LINKS):
                yield field, link


def read_health(reader: NvmlReader, reading: GpuReading, *, slow: bool) -> GpuReading:
    """`reading` with what is read every time and, with `slow`, what is read seldom.

    The field values must have been read.
    """
    now = Throttling(reasons=reader.call("nvmlDeviceGetCurrentClocksEventReasons"))
    power = Power(usage=reader.call("nvmlDeviceGetPowerUsage"))
    fast = replace(reading, temperature=_temperature(reader), throttling=now, power=power)
    if not slow:
        return fast
    valid = reader.once(
        ("inforom",),
        lambda: verdict_of(
            reader, "nvmlDeviceValidateInforom", pynvml.NVML_ERROR_CORRUPTED_INFOROM
        ),
    )
    return replace(
        fast,
        recovery_action=_whole(reader.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
        ecc=_ecc(reader),
        memory=_memory(reader),
        throttling=_throttling(reader, now),
        power=replace(
            power,
            limit=reader.call("nvmlDeviceGetEnforcedPowerLimit"),
            energy=reader.call("nvmlDeviceGetTotalEnergyConsumption"),
        ),
        pcie=_pcie(reader),
        nvlinks=tuple(_nvlinks(reader)),
        fabric=_fabric(reader),
        inforom_corrupt=None if valid is None else not valid,
    )


def read_modes(reader: NvmlReader) -> dict[str, int]:
    """NVML's numbers of the modes that the agent owns, of those that the driver reports."""
    modes = {
        "persistence mode": reader.call("nvmlDeviceGetPersistenceMode"),
        "compute mode": reader.call("nvmlDeviceGetComputeMode"),
    }
    return {name: int(value) for name, value in modes.items() if value is not None}


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


def _temperature(reader: NvmlReader) -> Temperature:
    return Temperature(
        gpu=reader.call("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        slowdown=_threshold(reader, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown=_threshold(reader, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        margin=reader.call("nvmlDeviceGetMarginTemperature"),
        memory=_whole(reader.field(pynvml.NVML_FI_DEV_MEMORY_TEMP)),
        memory_max=_threshold(reader, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    )


def _threshold(reader: NvmlReader, which: int) -> int | None:
    found: int | None = reader.once(
        ("threshold", which), lambda: call(_THRESHOLD, reader.device, which)
    )
    return found


def _ecc(reader: NvmlReader) -> Ecc:
    modes = reader.call("nvmlDeviceGetEccMode")
    status = reader.structure("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    field = reader.field
    return Ecc(
        volatile=EccErrors(
            _whole(field(pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL)),
            _whole(field(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)),
        ),
        aggregate=EccErrors(
            _whole(field(pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL)),
            _whole(field(pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL)),
        ),
        mode=None if modes is None else bool(modes[0]),
        pending_mode=None if modes is None else bool(modes[1]),
        sram_threshold_exceeded=_flag(None if status is None else status.bThresholdExceeded),
    )


def _memory(reader: NvmlReader) -> Memory:
    rows = reader.call("nvmlDeviceGetRemappedRows")
    banks = reader.call("nvmlDeviceGetRowRemapperHistogram")
    repair = reader.call("nvmlDeviceGetRepairStatus")
    single = reader.field(pynvml.NVML_FI_DEV_RETIRED_SBE)
    double = reader.field(pynvml.NVML_FI_DEV_RETIRED_DBE)
    return Memory(
        rows=None
        if rows is None
        else RemappedRows(int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])),
        histogram=None
        if banks is None
        else RowHistogram(banks.max, banks.high, banks.partial, banks.low, banks.none),
        pages=None
        if single is None or double is None
        else RetiredPages(
            int(single), int(double), bool(reader.field(pynvml.NVML_FI_DEV_RETIRED_PENDING))
        ),
        bank_remap_pending=_flag(reader.field(pynvml.NVML_FI_DEV_PENDING_BANK_REMAPPING)),
        unrepairable=_flag(reader.call("nvmlDeviceGetUnrepairableMemoryFlag_v1")),
        channel_repair=None if repair is None else bool(repair[0]),
        tpc_repair=None if repair is None else bool(repair[1]),
    )


def _throttling(reader: NvmlReader, now: Throttling) -> Throttling:
    field = reader.field
    return replace(
        now,
        power=_whole(field(pynvml.NVML_FI_DEV_PERF_POLICY_POWER)),
        thermal=_whole(field(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL)),
        software_thermal=_whole(field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN)),
        hardware_thermal=_whole(field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN)),
        power_brake=_whole(field(pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN)),
    )


def _pcie(reader: NvmlReader) -> Pcie:
    before = reader.call("nvmlDeviceGetPerformanceState")
    generation = reader.call("nvmlDeviceGetCurrPcieLinkGeneration")
    width = reader.call("nvmlDeviceGetCurrPcieLinkWidth")
    after = reader.ask(
        ("performance state after",), lambda: call("nvmlDeviceGetPerformanceState", reader.device)
    )
    known = before is not None and after is not None
    return Pcie(
        replays=reader.call("nvmlDeviceGetPcieReplayCounter"),
        generation=generation,
        generation_max=_once(reader, "nvmlDeviceGetMaxPcieLinkGeneration"),
        width=width,
        width_max=_once(reader, "nvmlDeviceGetMaxPcieLinkWidth"),
        under_load=before in _BUSY_STATES and after in _BUSY_STATES if known else None,
    )


def _nvlinks(reader: NvmlReader) -> Iterator[NvLink]:
    for link in range(MOST_LINKS):
        found = [_whole(reader.field(field, link)) for field in _LINK_FIELDS]
        if any(value is not None for value in found):
            up, replays, recoveries, crc = found
            yield NvLink(link, _flag(up), replays, recoveries, crc)


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


def _once(reader: NvmlReader, function: str) -> int | None:
    found: int | None = reader.once((function, "once"), lambda: call(function, reader.device))
    return found


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _flag(value: float | None) -> bool | None:
    return None if value is None else bool(value)
