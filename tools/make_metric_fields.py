"""Write the catalogue of metrics from a map of DCGM's fields to NVML.

    python -m tools.make_metric_fields SOURCE.json nodeagent/metrics/fields.json

SOURCE.json says for each DCGM field its number, names, type, unit, meaning and the NVML calls,
field values or GPM metrics that give it, in words where a rule is needed. Here the words become
sources and conversions; what they leave open (which attribute of a structure, how often to read)
is decided in the tables of `metric_tables.py`. The map's facts are from the sources of DCGM 4.5.3
and 4.6.0, of dcgm-exporter 4.5.3 to 4.8.2, and NVML's header; its help texts are its own.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tools import metric_tables as tables
from tools.metric_tables import Json

PROVENANCE = (
    "Numbers, names, types and units: sources of DCGM 4.5.3 and 4.6.0 and of dcgm-exporter 4.5.3 "
    "to 4.8.2. Calls, field values and GPM metrics: NVML's header 13.6 and nvidia-ml-py 13.615.71. "
    "Not one value was compared on hardware. Written by tools/make_metric_fields.py."
)
FROM_NVML = ("nvml", "nvml_fi", "nvml_derived", "gpm", "event")


def source_of(raw: Json) -> Json:
    """Where a numeric field's value comes from."""
    number, kind = raw["id"], raw["source"]
    if kind == "event":
        return {"from": "event", "happening": tables.HAPPENINGS[number]}
    if kind == "gpm":
        return gpm(raw)
    if number in tables.PCIE_BYTES:
        field, constant = tables.PCIE_BYTES[number]
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
        return {"from": "port", "counter": tables.PORT + tables.PORT_COUNTERS[raw["id"]]}
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
    if arguments := tables.ARGUMENTS.get(function) or re.findall(r"NVML_\w+", raw["conversion"]):
        source["arguments"] = arguments
    if structure := tables.STRUCTURES.get(function):
        source["structure"] = structure
    if items := tables.ITEMS.get(raw["id"]):
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
    if raw["id"] in tables.OF_EACH_LINK or words.endswith("scopeId = link"):
        scope = "each"
    elif "0xFFFFFFFF" in words or raw["id"] in (1216, 1218):
        scope = tables.ALL_LINKS
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
    if raw["id"] in tables.CONVERSIONS:
        return tables.CONVERSIONS[raw["id"]]
    if raw["id"] in tables.PCIE_BYTES or raw["conversion"].startswith("Δ"):
        return "thousandth"
    return tables.IN_WORDS.get(raw["conversion"])


def level_of(raw: Json) -> str:
    """The finest thing the agent exports the field for."""
    mig = raw["mig"]
    if mig == "system":
        return "node"
    if mig == "link" or raw["id"] in tables.OF_EACH_LINK:
        return "link"
    if (
        mig in ("gpm_mig", "event_gi_ci")
        or mig.startswith("mig_handle")
        or raw["id"] in tables.STAND_INS
    ):
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
    return "fast" if raw["id"] in tables.FAST else "once" if raw["id"] in tables.ONCE else "slow"


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
        "unit": tables.UNITS.get(raw["id"], raw.get("unit") or ""),
        "help": tables.HELP.get(raw["id"], raw["help"]),
        "level": level,
        "withMig": with_mig(raw),
        "tier": tier_of(raw),
        "whole": whole,
    }
    if raw["id"] in tables.STAND_INS:
        stand_in = tables.STAND_INS[raw["id"]]
        part = {"from": "gpm", "metrics": [*stand_in], "constants": [*stand_in.values()]}
        row["part"] = part
        row["real"] = False
    elif level == "gpuInstance":
        row["part"] = whole
    # DCGM's type is not known for some; there, as elsewhere, ratios are the ones with decimals.
    if raw.get("dcgm_type") == "double" or ("dcgm_type" not in raw and raw.get("unit") == "ratio"):
        row["real"] = True
    row["earlier"] = tables.EARLIER_NAMES.get(raw["name"], "")
    row["printedKind"] = raw.get("exporter_csv_type", "")
    row["default"] = raw.get("exporter_default") == "on"
    row["minArchitecture"] = raw.get("min_arch") or ""
    row["since"] = raw.get("since", "")
    row["note"] = raw.get("note", "")
    return {key: value for key, value in row.items() if value not in ("", False) or key == "unit"}


def text(raw: Json) -> Json:
    """A field that can only be a label."""
    system = raw["mig"] == "system"
    function = raw["nvml_calls"][0]
    structure = tables.STRUCTURES.get(function)
    more = tables.TEXT_SOURCES.get(raw["id"], {}) | ({"structure": structure} if structure else {})
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
    rest = {name for f in fields if f["id"] not in taken for name in (f["name"], f["name_dcgm46"])}
    return {
        "provenance": PROVENANCE,
        "fields": list(map(numeric, sorted(numbers, key=lambda f: f["id"]))),
        "texts": [text(f) for f in sorted(texts, key=lambda f: f["id"])],
        "unavailable": sorted(name for name in rest if name),
        "composed": tables.COMPOSED,
    }


def written(content: Json) -> str:
    """JSON with one row a line, so that a change of a row is a change of a line."""

    def lines(rows: list[Any]) -> str:
        return ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)

    return (
        f'{{\n "provenance": {json.dumps(content["provenance"])},\n'
        f' "fields": [\n{lines(content["fields"])}\n ],\n'
        f' "texts": [\n{lines(content["texts"])}\n ],\n'
        f' "unavailable": [\n{lines(content["unavailable"])}\n ],\n'
        f' "composed": [\n{lines(content["composed"])}\n ]\n}}\n'
    )


def main() -> None:
    """Read the map, write the catalogue."""
    source, target = map(Path, sys.argv[1:])
    content = catalogue(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(written(content), encoding="utf-8")
    print(f"{target}: {len(content['fields'])} numbers, {len(content['texts'])} texts")


if __name__ == "__main__":
    main()
