"""Write the catalogue of metrics from a map of DCGM's fields to NVML.

    python tools/make_metric_fields.py SOURCE.json nodeagent/metrics/fields.json

SOURCE.json says for each DCGM field its number, names, type, unit, meaning and the NVML calls,
field values or GPM metrics that give it, in words where a rule is needed. Here the words become
sources and conversions; what they leave open (which attribute of a structure, how often to read)
is decided here, in tables. The map's facts are from the sources of DCGM 4.5.3 and 4.6.0, of
dcgm-exporter 4.5.3 to 4.8.2, and NVML's header; its help texts are its own.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PROVENANCE = (
    "Numbers, names, types and units: sources of DCGM 4.5.3 and 4.6.0 and of dcgm-exporter 4.5.3 "
    "to 4.8.2. Calls, field values and GPM metrics: NVML's header 13.6 and nvidia-ml-py 13.615.71. "
    "Not one value was compared on hardware. Written by tools/make_metric_fields.py."
)
FROM_NVML = ("nvml", "nvml_fi", "nvml_derived", "gpm", "event")
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
COMPOSED = {
    "DCGM_EXP_XID_ERRORS_COUNT": "xidCount",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "clockEventCount",
    "DCGM_EXP_GPU_HEALTH_STATUS": "health",
    "DCGM_EXP_P2P_STATUS": "peers",
}
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


def source_of(raw: Json) -> Json:
    """Where a numeric field's value comes from."""
    number, kind = raw["id"], raw["source"]
    if kind == "event":
        return {"from": "event", "happening": HAPPENINGS[number]}
    if kind == "gpm":
        return gpm(raw)
    if number in PCIE_BYTES:
        field, constant = PCIE_BYTES[number]
        return {"from": "fieldRate", "fields": [field], "constants": [constant]}
    if kind == "nvml_fi" or raw["nvml_calls"] == ["nvmlDeviceGetFieldValues"]:
        return field_value(raw)
    (function,) = raw["nvml_calls"]
    return special_call(raw, function) or plain_call(raw, function)


def special_call(raw: Json, function: str) -> Json | None:
    """A call that is not about a handle alone; None: it is."""
    if function == "nvmlDeviceGetP2PStatus":
        return {"from": "peers", "function": function, "argument": "NVML_P2P_CAPS_INDEX_NVLINK"}
    if function == "nvmlDeviceReadPRMCounters_v1":
        return {"from": "port", "counter": PORT + PORT_COUNTERS[raw["id"]]}
    if function == "nvmlDeviceGetNvLinkErrorCounter":
        link = re.search(r"_L([0-9]+)$", raw["name"])
        where = int(link[1]) if link else "each"
        return {"from": "link", "function": function, "counter": raw["conversion"], "link": where}
    if function == "nvmlDeviceValidateInforom":
        return {"from": "verdict", "function": function, "refusal": "NVML_ERROR_CORRUPTED_INFOROM"}
    return None


def plain_call(raw: Json, function: str) -> Json:
    """A call about the node or a handle, without what it does not need."""
    source: Json = {"from": "system" if raw["mig"] == "system" else "device", "function": function}
    if arguments := ARGUMENTS.get(function) or re.findall(r"NVML_\w+", raw["conversion"]):
        source["arguments"] = arguments
    if structure := STRUCTURES.get(function):
        source["structure"] = structure
    if items := ITEMS.get(raw["id"]):
        source["items"] = list(items)
    return source


def gpm(raw: Json) -> Json:
    """A GPM metric, or one for each link."""
    number, constant = raw["gpm"]["id"], raw["gpm"]["name"]
    if isinstance(number, str):
        first, step = re.fullmatch(r"([0-9]+)\+([0-9]+)n", number).groups()  # type: ignore[union-attr] # the map has no other form
        return {"from": "gpmLink", "first": int(first), "step": int(step), "constant": constant}
    return {"from": "gpm", "metrics": [number], "constants": [constant]}


def field_value(raw: Json) -> Json:
    """Field values as they are, or what they grow by in a second."""
    numbers = [entry["id"] for entry in raw["nvml_field_ids"]]
    names = [entry["name"] for entry in raw["nvml_field_ids"]]
    words = raw["conversion"]
    scope: int | str = 0
    if raw["id"] in OF_EACH_LINK or words.endswith("scopeId = link"):
        scope = "each"
    elif "0xFFFFFFFF" in words or raw["id"] in (1216, 1218):
        scope = ALL_LINKS
    elif link := re.search(r"scopeId = ([0-9]+)$", words):
        scope = int(link[1])
    rate = words.startswith("Δ")
    source: Json = (
        {"from": "fieldRate", "fields": numbers, "constants": names}
        if rate
        else {"from": "field", "field": numbers[0], "constant": names[0]}
    )
    return source | ({"scope": scope} if scope or rate else {})


def conversion_of(raw: Json) -> str | None:
    """How the raw value becomes the exported one; None: it is that already."""
    if raw["id"] in CONVERSIONS:
        return CONVERSIONS[raw["id"]]
    if raw["id"] in PCIE_BYTES or raw["conversion"].startswith("Δ"):
        return "thousandth"
    return IN_WORDS.get(raw["conversion"])


def level_of(raw: Json) -> str:
    """The finest thing the agent exports the field for."""
    mig = raw["mig"]
    if mig == "system":
        return "node"
    if mig == "link" or raw["id"] in OF_EACH_LINK:
        return "link"
    if mig in ("gpm_mig", "event_gi_ci") or mig.startswith("mig_handle") or raw["id"] in STAND_INS:
        return "gpuInstance"
    return "gpu"


def with_mig(raw: Json) -> str:
    """What is left of the whole GPU's value with MIG on."""
    if raw["source"] == "gpm" and raw["mig"] in ("gpm_mig", "parent_only"):
        return "unproven"
    return "gone" if raw["mig"] in ("gpu_only_not_in_mig", "link") else "stays"


def tier_of(raw: Json) -> str:
    """How often to read it."""
    if raw["source"] == "event":
        return "event"
    return "fast" if raw["id"] in FAST else "once" if raw["id"] in ONCE else "slow"


def numeric(raw: Json) -> Json:
    """One row of the catalogue."""
    conversion = conversion_of(raw)
    whole = source_of(raw) | ({"conversion": conversion} if conversion else {})
    level = level_of(raw)
    row: Json = {
        "id": raw["id"],
        "name": raw["name"],
        "renamed": raw["name_dcgm46"],
        "kind": raw["prom_type"],
        "unit": UNITS.get(raw["id"], raw.get("unit") or ""),
        "help": HELP.get(raw["id"], raw["help"]),
        "level": level,
        "withMig": with_mig(raw),
        "tier": tier_of(raw),
        "whole": whole,
    }
    if raw["id"] in STAND_INS:
        stand_in = STAND_INS[raw["id"]]
        part = {"from": "gpm", "metrics": [*stand_in], "constants": [*stand_in.values()]}
        row["part"] = part
        row["real"] = False
    elif level == "gpuInstance":
        row["part"] = whole
    # DCGM's type is not known for some; there, as elsewhere, ratios are the ones with decimals.
    if raw.get("dcgm_type") == "double" or ("dcgm_type" not in raw and raw.get("unit") == "ratio"):
        row["real"] = True
    row["earlier"] = EARLIER_NAMES.get(raw["name"], "")
    row["printedKind"] = raw.get("exporter_csv_type", "")
    row["default"] = raw.get("exporter_default") == "on"
    row["minArchitecture"] = raw.get("min_arch") or ""
    row["since"] = raw.get("since", "")
    row["note"] = raw.get("note", "")
    return {key: value for key, value in row.items() if value not in ("", False) or key == "unit"}


def composed(raw: Json, number: int) -> Json:
    """One of the metrics that dcgm-exporter itself adds."""
    source = {"from": "composed", "composition": COMPOSED[raw["name"]], "labels": raw["labels"]}
    return {
        "id": number,
        "name": raw["name"],
        "renamed": raw["name"],
        "kind": "gauge",
        "printedKind": "counter",
        "unit": "",
        "help": raw["help"],
        "level": "gpu",
        "withMig": "stays",
        "tier": "event",
        "whole": source,
    }


def text(raw: Json) -> Json:
    """A field that can only be a label."""
    system = raw["mig"] == "system"
    function = raw["nvml_calls"][0]
    structure = STRUCTURES.get(function)
    more = TEXT_SOURCES.get(raw["id"], {}) | ({"structure": structure} if structure else {})
    row = {
        "id": raw["id"],
        "name": raw["name"],
        "renamed": raw["name_dcgm46"],
        "help": raw["help"],
        "level": "node" if system else "gpu",
        "source": {
            "from": "system" if system else "device",
            "function": function,
            **more,
        },
    }
    return row | ({"default": True} if raw.get("exporter_default") == "on" else {})


def catalogue(source: Json) -> Json:
    """The whole file."""
    fields = source["fields"]
    usable = [f for f in fields if f["source"] in FROM_NVML]
    numbers = [f for f in usable if f.get("prom_type") in ("gauge", "counter")]
    texts = [f for f in usable if f.get("prom_type") == "label"]
    taken = {f["id"] for f in (*numbers, *texts)}
    own = [composed(raw, 9001 + n) for n, raw in enumerate(source["exporter_own"])]
    rest = {name for f in fields if f["id"] not in taken for name in (f["name"], f["name_dcgm46"])}
    return {
        "provenance": PROVENANCE,
        "fields": [*map(numeric, sorted(numbers, key=lambda f: f["id"])), *own],
        "texts": [text(f) for f in sorted(texts, key=lambda f: f["id"])],
        "unavailable": sorted(name for name in rest if name),
    }


def written(content: Json) -> str:
    """JSON with one row a line, so that a change of a row is a change of a line."""

    def lines(rows: list[Any]) -> str:
        return ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)

    return (
        f'{{\n "provenance": {json.dumps(content["provenance"])},\n'
        f' "fields": [\n{lines(content["fields"])}\n ],\n'
        f' "texts": [\n{lines(content["texts"])}\n ],\n'
        f' "unavailable": [\n{lines(content["unavailable"])}\n ]\n}}\n'
    )


def main() -> None:
    """Read the map, write the catalogue."""
    source, target = map(Path, sys.argv[1:])
    content = catalogue(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(written(content), encoding="utf-8")
    print(f"{target}: {len(content['fields'])} numbers, {len(content['texts'])} texts")


if __name__ == "__main__":
    main()
