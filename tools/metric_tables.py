"""What the map of DCGM's fields to NVML leaves open, decided in tables by the field's number.

Which attribute of a structure is meant, how the value is converted, how often it is read, and what
stands in for it on MIG devices. `tools/make_metric_fields.py` reads them.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
ALL_LINKS = 0xFFFFFFFF

# Arguments that the map says in words, and structures that pynvml wants to be given to fill.
ARGUMENTS = {"nvmlDeviceGetMemoryInfo": ["nvmlMemory_v2"]}
STRUCTURES = {
    "nvmlDeviceGetGpuFabricInfoV": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlDeviceGetPlatformInfo": "c_nvmlPlatformInfo_v2_t",
    "nvmlDeviceGetSramEccErrorStatus": "c_nvmlEccSramErrorStatus_v1_t",
}

# What is wanted of a structure or a tuple that a call returns.
ITEMS: dict[int, tuple[str, ...]] = {
    63: ("0", "1"),
    67: ("0",),
    74: ("ccFeature",),
    90: ("bar1Total",),
    92: ("bar1Used",),
    93: ("bar1Free",),
    94: ("isSupportedDevice",),
    120: ("0",),
    161: ("0",),
    162: ("1",),
    170: ("state",),
    171: ("status",),
    173: ("cliqueId",),
    174: ("healthMask",),
    175: ("healthSummary",),
    203: ("gpu",),
    204: ("memory",),
    206: ("0",),
    207: ("0",),
    250: ("total",),
    251: ("free",),
    252: ("used",),
    253: ("reserved",),
    254: ("used", "total", "reserved"),
    346: ("bThresholdExceeded",),
    385: ("max",),
    386: ("high",),
    387: ("partial",),
    388: ("low",),
    389: ("none",),
    526: ("gridLicensableFeatures.featureState",),
    573: ("slotNumber",),
    574: ("trayIndex",),
    575: ("hostId",),
    576: ("peerType",),
    577: ("moduleId",),
}
CONVERSIONS = {
    63: "versionPair",
    90: "wholeMebibytes",
    92: "wholeMebibytes",
    93: "wholeMebibytes",
    140: "memoryTemperature",
    250: "wholeMebibytes",
    251: "wholeMebibytes",
    252: "wholeMebibytes",
    253: "wholeMebibytes",
    254: "usedShare",
    390: "howMany",
    526: "anyPositive",
    1216: "bitErrorRatio",
    1218: "bitErrorRatio",
}
IN_WORDS = {
    "mW / 1000": "thousandth",
    "% / 100": "percentAsRatio",
    "MiB/s × 1048576": "mebibytesAsBytes",
}
PORT = "NVML_PRM_COUNTER_ID_"
PORT_COUNTERS = {
    580: "PPRM_OPER_RECOVERY",
    581: "PPCNT_RECOVERY_CTRS_TIME_SINCE_LAST_RECOVERY",
    582: "PPCNT_RECOVERY_CTRS_TIME_BETWEEN_LAST_TWO_RECOVERIES",
    583: "PPCNT_RECOVERY_CTRS_TOTAL_SUCCESSFUL_RECOVERY_EVENTS",
    584: "PPCNT_PHYSICAL_LAYER_CTRS_SUCCESSFUL_RECOVERY_EVENTS",
    585: "PPCNT_PHYSICAL_LAYER_CTRS_LINK_DOWN_EVENTS",
    586: "PPCNT_PLR_RCV_CODES",
    587: "PPCNT_PLR_RCV_CODE_ERR",
    588: "PPCNT_PLR_RCV_UNCORRECTABLE_CODE",
    589: "PPCNT_PLR_XMIT_CODES",
    590: "PPCNT_PLR_XMIT_RETRY_CODES",
    591: "PPCNT_PLR_XMIT_RETRY_EVENTS",
    592: "PPCNT_PLR_SYNC_EVENTS",
    1509: "PPCNT_PORTCOUNTERS_PORT_XMIT_WAIT",
}
HAPPENINGS = {6: "binding", 230: "xid", 450: "nvlinkXid"}

# nvmlDeviceGetPcieThroughput blocks for 20 ms; the growth of these field values says the same.
PCIE_BYTES = {
    200: (197, "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
    201: (198, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
}
# Utilization does not exist with MIG on; these GPM metrics (0-100, as the field itself) stand in.
STAND_INS: dict[int, dict[int, str]] = {
    203: {1: "NVML_GPM_METRIC_GRAPHICS_UTIL"},
    204: {10: "NVML_GPM_METRIC_DRAM_BW_UTIL"},
    206: {166 + n: f"NVML_GPM_METRIC_NVENC_{n}_UTIL" for n in range(4)},
    207: {30 + n: f"NVML_GPM_METRIC_NVDEC_{n}_UTIL" for n in range(8)},
}
# What the map's words do not say.
HELP = {64: "NVLink peer-to-peer: bit i is set where GPU i of this node can be reached"}
UNITS = {64: "bitmask"}
# DCGM has one number for them, NVML one for each link.
OF_EACH_LINK = {497, 498, 499, 1508}

FAST = {100, 101, 102, 112, 140, 150, 153, 155, 156, 157, 200, 201, 203, 204, 206, 207}
FAST |= {90, 92, 93, *range(250, 255), *range(440, 450), *range(475, 481), 494, 495, 496}
FAST |= {*range(825, 844), *range(879, 898), *range(1001, 1100), *range(1529, 1534)}
ONCE = {5, 52, 55, 63, 69, 94, 113, 114, 115, 151, 152, 158, 159, 161, 162, 163, 235, 236}
ONCE |= {285, 287, 500, *range(573, 578), 1433}

# Names in dcgm-exporter 1; its present file of compatible names has the fields in this order.
EARLIER = {
    "sm_clock": "SM_CLOCK",
    "memory_clock": "MEM_CLOCK",
    "memory_temp": "MEMORY_TEMP",
    "gpu_temp": "GPU_TEMP",
    "power_usage": "POWER_USAGE",
    "total_energy_consumption": "TOTAL_ENERGY_CONSUMPTION",
    "pcie_tx_throughput": "PCIE_TX_THROUGHPUT",
    "pcie_rx_throughput": "PCIE_RX_THROUGHPUT",
    "pcie_replay_counter": "PCIE_REPLAY_COUNTER",
    "gpu_utilization": "GPU_UTIL",
    "mem_copy_utilization": "MEM_COPY_UTIL",
    "enc_utilization": "ENC_UTIL",
    "dec_utilization": "DEC_UTIL",
    "xid_errors": "XID_ERRORS",
    "power_violation": "POWER_VIOLATION",
    "thermal_violation": "THERMAL_VIOLATION",
    "sync_boost_violation": "SYNC_BOOST_VIOLATION",
    "board_limit_violation": "BOARD_LIMIT_VIOLATION",
    "low_util_violation": "LOW_UTIL_VIOLATION",
    "reliability_violation": "RELIABILITY_VIOLATION",
    "fb_free": "FB_FREE",
    "fb_used": "FB_USED",
    "ecc_sbe_volatile_total": "ECC_SBE_VOL_TOTAL",
    "ecc_dbe_volatile_total": "ECC_DBE_VOL_TOTAL",
    "ecc_sbe_aggregate_total": "ECC_SBE_AGG_TOTAL",
    "ecc_dbe_aggregate_total": "ECC_DBE_AGG_TOTAL",
    "retired_pages_sbe": "RETIRED_SBE",
    "retired_pages_dbe": "RETIRED_DBE",
    "retired_pages_pending": "RETIRED_PENDING",
    "nvlink_flit_crc_error_count_total": "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink_data_crc_error_count_total": "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "nvlink_replay_error_count_total": "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "nvlink_recovery_error_count_total": "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "nvlink_bandwidth_total": "NVLINK_BANDWIDTH_TOTAL",
}
EARLIER_NAMES = {f"DCGM_FI_DEV_{new}": f"dcgm_{old}" for old, new in EARLIER.items()} | {
    f"DCGM_FI_PROF_{name}": f"dcgm_fi_prof_{name.lower()}"
    for name in (
        "GR_ENGINE_ACTIVE",
        "SM_ACTIVE",
        "SM_OCCUPANCY",
        "PIPE_TENSOR_ACTIVE",
        "DRAM_ACTIVE",
        "PCIE_TX_BYTES",
        "PCIE_RX_BYTES",
    )
}
EARLIER_NAMES["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
# What dcgm-exporter itself makes of several readings: number, name, level, happening, help.
COMPOSED: list[Json] = [
    {
        "id": number,
        "name": name,
        "renamed": name,
        "kind": "gauge",
        "help": meaning,
        "level": level,
        "withMig": "stays",
        "tier": "event",
        "whole": {"from": "event", "happening": happening},
        **({"part": {"from": "event", "happening": happening}} if level != "gpu" else {}),
    }
    for number, name, level, happening, meaning in (
        (
            9001,
            "DCGM_EXP_XID_ERRORS_COUNT",
            "gpuInstance",
            "xids",
            "XIDs in the last five minutes, by number",
        ),
        (
            9002,
            "DCGM_EXP_CLOCK_EVENTS_COUNT",
            "gpu",
            "clocks",
            "Readings in the last five minutes in which something held the clocks down, by what",
        ),
        (
            9003,
            "DCGM_EXP_GPU_HEALTH_STATUS",
            "gpu",
            "health",
            "Health by check: 0 well, 10 degraded, 20 unhealthy",
        ),
    )
]
# Texts: the structure's attribute or the call's argument.
TEXT_SOURCES: dict[int, Json] = {
    56: {"arguments": ["NVML_INFOROM_OEM"]},
    57: {"items": ["busId"]},
    58: {"items": ["pciDeviceId"]},
    59: {"items": ["pciSubSystemId"]},
    80: {"arguments": ["NVML_INFOROM_ECC"]},
    81: {"arguments": ["NVML_INFOROM_POWER"]},
    172: {"items": ["clusterUuid"]},
    571: {"items": ["ibGuid"]},
    572: {"items": ["chassisSerialNumber"]},
}
