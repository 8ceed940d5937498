"""Which call gives which reading, for whoever samples: a row for every field of `readings`.

Calls are pynvml's names; field values are read in one batch with nvmlDeviceGetFieldValues. A call
that answers NOT_SUPPORTED or is missing in the library leaves its field None and need not be asked
again; one that fails otherwise leaves it None this time. NVML's answers that a GPU is lost, needs a
reset or does not return become `answer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """How often it is read."""

    FAST = "fast"  # with every sample
    SLOW = "slow"  # every 30 s or so
    EVENT = "event"  # when NVML or the kernel log tells
    ONCE = "once"  # at the start, and after a reset
    OWN = "own"  # the agent knows it without NVML


@dataclass(frozen=True, slots=True)
class ReadingSource:
    """`field` of `GpuReading` or, with a capital, of another reading; `names` exist in pynvml."""

    field: str
    tier: Tier
    names: tuple[str, ...] = ()
    how: str = ""


def _slow(field: str, *names: str, how: str = "") -> ReadingSource:
    return ReadingSource(field, Tier.SLOW, names, how)


def _fast(field: str, *names: str, how: str = "") -> ReadingSource:
    return ReadingSource(field, Tier.FAST, names, how)


def _event(field: str, *names: str, how: str = "") -> ReadingSource:
    return ReadingSource(field, Tier.EVENT, names, how)


def _once(field: str, *names: str, how: str = "") -> ReadingSource:
    return ReadingSource(field, Tier.ONCE, names, how)


def _own(field: str, *, how: str) -> ReadingSource:
    return ReadingSource(field, Tier.OWN, (), how)


_VOLATILE = "NVML_VOLATILE_ECC"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"

SOURCES: tuple[ReadingSource, ...] = (
    _once("uuid", "nvmlDeviceGetUUID"),
    _once("index", "nvmlDeviceGetIndex"),
    _once("pci_bus_id", "nvmlDeviceGetPciInfo_v3"),
    _fast(
        "answer",
        "NVML_ERROR_GPU_IS_LOST",
        "NVML_ERROR_RESET_REQUIRED",
        how="of all calls of this sample the worst; a call past its deadline is HANGS",
    ),
    _slow("mig", "nvmlDeviceGetMigMode"),
    _slow("recovery_action", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", how="and at event 0x8000"),
    _slow("ecc.volatile", "NVML_FI_DEV_ECC_SBE_VOL_TOTAL", "NVML_FI_DEV_ECC_DBE_VOL_TOTAL"),
    _slow("ecc.aggregate", "NVML_FI_DEV_ECC_SBE_AGG_TOTAL", "NVML_FI_DEV_ECC_DBE_AGG_TOTAL"),
    _slow("ecc.mode", "nvmlDeviceGetCurrentEccMode"),
    _slow("ecc.pending_mode", "nvmlDeviceGetPendingEccMode"),
    _slow(
        "ecc.sram_threshold_exceeded",
        "nvmlDeviceGetSramEccErrorStatus",
        "c_nvmlEccSramErrorStatus_v1_t",
        how="bThresholdExceeded; the structure goes by reference, with its version set",
    ),
    _slow("memory.rows", "nvmlDeviceGetRemappedRows", how="not told while MIG has instances"),
    _slow("memory.histogram", "nvmlDeviceGetRowRemapperHistogram"),
    _slow(
        "memory.pages",
        "NVML_FI_DEV_RETIRED_SBE",
        "NVML_FI_DEV_RETIRED_DBE",
        "NVML_FI_DEV_RETIRED_PENDING",
    ),
    _slow("memory.bank_remap_pending", "NVML_FI_DEV_PENDING_BANK_REMAPPING"),
    _slow("memory.unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    _slow("memory.channel_repair", "nvmlDeviceGetRepairStatus", how="the first of the list"),
    _slow("memory.tpc_repair", "nvmlDeviceGetRepairStatus", how="the second of the list"),
    _fast("temperature.gpu", "nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU"),
    _once("temperature.slowdown", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
    _once("temperature.shutdown", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN"),
    _fast("temperature.margin", "nvmlDeviceGetMarginTemperature"),
    _fast("temperature.memory", "NVML_FI_DEV_MEMORY_TEMP"),
    _once("temperature.memory_max", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_MEM_MAX"),
    _fast("throttling.reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
    _slow("throttling.power", "NVML_FI_DEV_PERF_POLICY_POWER", how="nanoseconds"),
    _slow("throttling.thermal", "NVML_FI_DEV_PERF_POLICY_THERMAL", how="nanoseconds"),
    _slow("throttling.software_thermal", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
    _slow("throttling.hardware_thermal", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"),
    _slow("throttling.power_brake", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"),
    _fast("power.usage", "nvmlDeviceGetPowerUsage"),
    _slow("power.limit", "nvmlDeviceGetEnforcedPowerLimit"),
    _slow("power.energy", "nvmlDeviceGetTotalEnergyConsumption"),
    _slow("pcie.replays", "nvmlDeviceGetPcieReplayCounter"),
    _slow("pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _once("pcie.generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _slow("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _once("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _slow(
        "pcie.under_load",
        "nvmlDeviceGetPerformanceState",
        "NVML_PSTATE_0",
        how="P0 or P1, read before and after the link",
    ),
    _slow("nvlinks.link", "NVML_NVLINK_MAX_LINKS", how="0 and up; INVALID_ARGUMENT: no more"),
    _slow("nvlinks.up", "nvmlDeviceGetNvLinkState"),
    _slow("nvlinks.replays", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", how="scopeId is the link"),
    _slow("nvlinks.recoveries", "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY", how="scopeId: the link"),
    _slow("nvlinks.crc_errors", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC", how="scopeId is the link"),
    _slow(
        "fabric",
        "nvmlDeviceGetGpuFabricInfoV",
        "c_nvmlGpuFabricInfo_v3_t",
        "c_nvmlGpuFabricInfo_v2_t",
        how="the structure goes by reference, with its version set; v2 has no summary",
    ),
    _slow(
        "modes",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetMigMode",
        how="beside what settings and plan want; a mode nobody wants is left out",
    ),
    _once("inforom_corrupt", "nvmlDeviceValidateInforom", "NVML_ERROR_CORRUPTED_INFOROM"),
    _slow("instances.instance", "nvmlDeviceGetGpuInstanceId", how="or the observed node's"),
    _slow("instances.placement", "nvmlGpuInstanceGetInfo", how="or the observed node's"),
    _slow(
        "instances.uncorrected",
        "nvmlDeviceGetMemoryErrorCounter",
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
        _VOLATILE,
        "NVML_MEMORY_LOCATION_SRAM",
        how="on the MIG device handle, which tells volatile errors outside DRAM only",
    ),
    _own("NodeReading.at", how="CLOCK_BOOTTIME, and the time of day"),
    _own("NodeReading.boot_id", how="/proc/sys/kernel/random/boot_id"),
    _slow("NodeReading.known", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"),
    _slow("NodeReading.listed_addresses", "nvmlDeviceGetPciInfo_v3"),
    _own("NodeReading.pci_addresses", how="/sys/bus/pci/devices: vendor 0x10de, class 0x03"),
    _fast("NodeReading.answer", "nvmlDeviceGetCount", how="against its deadline"),
    _event("NodeReading.listener", "nvmlEventSetWait_v2", how="against its deadline"),
    _own("NodeReading.resets", how="the agent's own ResetGpu steps"),
    _own("NodeReading.cleared", how="the user's own table of XIDs, read at the start"),
    _own("NodeReading.gpus", how="the readings above"),
    _event(
        "NodeReading.xids",
        "nvmlEventSetWait_v2",
        "nvmlEventTypeXidCriticalError",
        how="and kernel_log.read_lines on /dev/kmsg; 0xFFFFFFFF is no instance",
    ),
    _event(
        "NodeReading.events",
        "nvmlEventTypeDoubleBitEccError",
        "nvmlEventTypeSingleBitEccErrorStorm",
        "nvmlEventTypeDramRetirementFailure",
        "nvmlEventTypeNonFatalPoisonError",
        "nvmlEventTypeFatalPoisonError",
        "nvmlEventTypeGpuUnavailableError",
        "nvmlEventMigConfigChange",
        how="those that nvmlDeviceGetSupportedEventTypes offers",
    ),
)
