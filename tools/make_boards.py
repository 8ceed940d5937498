"""Write the simulator's board files from a collection of evidence about MIG hardware.

    python tools/make_boards.py SOURCE.json nodeagent/simulation/boards

SOURCE.json (schema `mig_hardware/1`) says for each GPU model which figures are known and from
where. A board file is one model in the simulator's own terms. Every field keeps its provenance:
`status` (confirmed, single-source, inferred), the sources, and a note. A figure that no source has
published is estimated by a rule that fits the models where it is known; it then carries the
status `assumed` and the rule as its note.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

BOARDS = {
    "a30": "A30-24GB",
    "a100-40gb": "A100-40GB",
    "a100-80gb": "A100-80GB",
    "a800-40gb": "A800-40GB",
    "a800-80gb": "A800-80GB",
    "h100-80gb": "H100-SXM5-80GB",
    "h100-pcie": "H100-PCIe-80GB",
    "h100-nvl": "H100-NVL-94GB",
    "h20": "H20-96GB",
    "gh200": "GH200-96GB",
    "gh200-144gb": "GH200-144GB",
    "h200": "H200-SXM-141GB",
    "h200-nvl": "H200-NVL-141GB",
    "b200": "B200-180GB",
    "gb200": "GB200-186GB",
    "b300": "B300-288GB",
    "gb300": "GB300-278GB",
    "rtx-pro-6000": "RTX-PRO-6000-Server-96GB",
    "rtx-pro-6000-max-q": "RTX-PRO-6000-MaxQ-96GB",
    "rtx-pro-6000-workstation": "RTX-PRO-6000-Workstation-96GB",
}

PUBLIC = "public-specification"
# Cards without MIG. Their figures are the vendor's published specifications and what
# `nvidia-smi` prints on them.
WITHOUT_MIG: dict[str, Json] = {
    "t4": {
        "product": "Tesla T4",
        "architecture": "Turing (TU104)",
        "pci_device_id": "0x1EB810DE",
        "pci_subsystem_id": "0x12A210DE",
        "compute_capability": "7.5",
        "multiprocessors": 40,
        "memory_mib": 15360,
        "bar1_mib": 256,
    },
    "l40s": {
        "product": "NVIDIA L40S",
        "architecture": "Ada Lovelace (AD102)",
        "pci_device_id": "0x26B910DE",
        "compute_capability": "8.9",
        "multiprocessors": 142,
        "memory_mib": 46068,
        "bar1_mib": 65536,
    },
}

MULTIPROCESSORS_NOTE = "not published; estimated from the profiles and the whole GPU"
MEMORY_NOTE = "not published; estimated: a profile has twice its half and 256 MiB"
ENGINES_NOTE = "not published; estimated: one per compute slice, as on Hopper"
# The smallest share of a GPU's memory that its full profile gets on any captured board is 0.973
# (GH200), the largest 0.997 (H200); this lies between.
USABLE_SHARE = 0.985


class Fields:
    """The fields of one JSON object together with where each value came from."""

    def __init__(self) -> None:
        self.values: Json = {}
        self.provenance: Json = {}

    def put(
        self, name: str, value: object, status: str, sources: list[str], note: str = ""
    ) -> None:
        self.values[name] = value
        self.provenance[name] = {"status": status, "sources": sources}
        if note:
            self.provenance[name]["note"] = note

    def assume(self, name: str, value: object, note: str) -> None:
        self.put(name, value, "assumed", [], note)

    def as_json(self) -> Json:
        return {**self.values, "provenance": self.provenance}


def main(arguments: list[str]) -> int:
    """Write all boards; returns the exit code."""
    if len(arguments) != 2:
        print("usage: make_boards.py SOURCE.json DIRECTORY", file=sys.stderr)
        return 2
    source = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    models = {model["key"]: model for model in source["gpus"]}
    target = Path(arguments[1])
    for board, key in BOARDS.items():
        write(target, board, mig_board(board, models[key]), source["sources"])
    for board, known in WITHOUT_MIG.items():
        write(target, board, plain_board(board, known), source["sources"])
    return 0


def mig_board(board: str, model: Json) -> Json:
    """A card with MIG."""
    fields = Fields()
    pci = model["pci_device_ids"][0]
    fields.put("product", model["product_names"][0], pci["status"], pci["sources"])
    fields.put("architecture", model["architecture"], pci["status"], pci["sources"])
    fields.put("pci_device_id", pci["packed"], pci["status"], pci["sources"])
    subsystem = re.match(r"0x[0-9A-F]{8}", pci.get("subsystem") or "")
    if subsystem:
        fields.put("pci_subsystem_id", subsystem[0], "single-source", pci["sources"])
    else:
        fields.assume("pci_subsystem_id", "0x000010DE", "not published")
    for name, key in (
        ("compute_capability", "compute_capability"),
        ("multiprocessors", "multiprocessor_count"),
        ("memory_mib", "total_memory_mib"),
        ("memory_slices", "memory_slices"),
        ("compute_slices", "compute_slices"),
        ("max_gpu_instances", "max_gpu_instances"),
        ("bar1_mib", "bar1_total_mib"),
        ("reserved_mib", "reserved_memory_mib"),
        ("mode_change_needs_reset", "mode_change_needs_gpu_reset"),
        ("mode_survives_reboot", "mode_survives_reboot"),
    ):
        known = model.get(key)
        if known and known["value"] is not None:
            fields.put(name, known["value"], known["status"], known["sources"])
    _assume_card(fields, model)
    profiles = [gpu_profile(p) for p in model["gpu_instance_profiles"]]
    _assume_profiles(fields.values, profiles)
    fields.put(
        "compute_placement",
        "alignedTree" if _has_mini_quarter(model) else "firstFit",
        "confirmed",
        ["ogkm"],
    )
    return {
        "board": board,
        **fields.as_json(),
        "profiles": [
            {**p.values, "compute": c, "provenance": p.provenance} for p, c in _finished(profiles)
        ],
    }


def plain_board(board: str, known: Json) -> Json:
    """A card without MIG."""
    fields = Fields()
    for name, value in known.items():
        fields.put(name, value, "confirmed", [PUBLIC])
    if "pci_subsystem_id" not in known:
        fields.assume("pci_subsystem_id", "0x000010DE", "not published")
    _assume_reserved(fields)
    for name in ("memory_slices", "compute_slices", "max_gpu_instances"):
        fields.put(name, 0, "confirmed", [PUBLIC], "the card has no MIG")
    for name in ("mode_change_needs_reset", "mode_survives_reboot"):
        fields.put(name, False, "confirmed", [PUBLIC], "the card has no MIG")
    fields.put("compute_placement", "firstFit", "confirmed", [PUBLIC], "the card has no MIG")
    return {"board": board, **fields.as_json(), "profiles": []}


def gpu_profile(known: Json) -> Fields:
    """One GPU-instance profile; what is not known stays None for now."""
    fields = Fields()
    for name, key in (
        ("name", "name"),
        ("kind", "nvml_enum_value"),
        ("id", "smi_id"),
        ("slices", "compute_slices"),
        ("memory_mib", "memory_mib"),
        ("multiprocessors", "sm_count"),
        ("copy_engines", "copy_engines"),
        ("decoders", "decoders"),
        ("encoders", "encoders"),
        ("jpeg", "jpeg"),
        ("ofa", "ofa"),
        ("max_instances", "max_instances"),
    ):
        fields.put(name, known[key], *_provenance(known, key))
    fields.put(
        "placements",
        [
            {
                "start": p["start"],
                "size": p["size"],
                "id": p["gi_id"]["normal"],
                "mirrored_id": p["gi_id"].get("mirrored", p["gi_id"]["normal"]),
            }
            for p in known["placements"]
        ],
        *_provenance(known, "placements"),
    )
    fields.values["compute"] = [
        compute_profile(known, c) for c in known["compute_instance_profiles"]
    ]
    return fields


def compute_profile(gpu: Json, known: Json) -> Fields:
    """One compute-instance profile of a GPU-instance profile."""
    fields = Fields()
    for name, key in (
        ("id", "smi_id"),
        ("slices", "slices"),
        ("multiprocessors", "sm_count"),
        ("max_instances", "max_instances"),
    ):
        fields.put(name, known[key], *_provenance(known, key))
    if known["placements"]:
        placements = [[p["start"], p["size"]] for p in known["placements"]]
        fields.put("placements", placements, *_provenance(known, "placements"))
    else:
        size = known["slices"]
        starts = range(gpu["compute_slices"] - size + 1)
        fields.assume("placements", [[s, size] for s in starts], "not published; no alignment")
    return fields


def _provenance(known: Json, key: str) -> tuple[str, list[str], str]:
    status, sources, *note = known["provenance"].get(key, ["inferred", []])
    return status, sources, note[0] if note else ""


def _has_mini_quarter(model: Json) -> bool:
    """Hopper and later, where 1g with double memory has more multiprocessors than 1g."""
    return any(
        c["nvml_enum_value"] == 7
        for p in model["gpu_instance_profiles"]
        for c in p["compute_instance_profiles"]
    )


def _assume_card(fields: Fields, model: Json) -> None:
    values = fields.values
    if "memory_mib" not in values:
        name = model["gpu_instance_profiles"][-1]["name"]
        gigabytes = int(name.split(".")[1].removesuffix("gb"))
        fields.assume("memory_mib", gigabytes * 1024, f"not published; from the name {name}")
    if "GH200" in values["product"]:
        if "bar1_mib" not in values:
            fields.assume("bar1_mib", 0, "not published; as on the other GH200")
    elif "bar1_mib" not in values:
        bar1 = 1 << (values["memory_mib"] - 1).bit_length()
        fields.assume("bar1_mib", bar1, "not published; the next power of two above the memory")
    if "multiprocessors" not in values:
        fields.assume("multiprocessors", 148, "not published; as on the B300 of the same chip")
    _assume_reserved(fields)


def _assume_reserved(fields: Fields) -> None:
    if "reserved_mib" not in fields.values:
        reserved = round(fields.values["memory_mib"] * 0.006)
        fields.assume("reserved_mib", reserved, "not published; 0.6 % of the memory, as on H100")


def _assume_profiles(card: Json, profiles: list[Fields]) -> None:
    one, two, half, full = (_first(profiles, slices) for slices in (1, 2, 3, 7))
    if half is not None and full is not None and one is not None and two is not None:
        _assume_memory(card, profiles)
        _assume_multiprocessors(card, one, two, profiles)
    for profile in profiles:
        for engine in ("copy_engines", "decoders", "encoders", "jpeg", "ofa"):
            if profile.values[engine] is None:
                count = profile.values["slices"] * (2 if engine == "copy_engines" else 1)
                profile.assume(engine, count, ENGINES_NOTE)


def _assume_memory(card: Json, profiles: list[Fields]) -> None:
    """7g is twice 3g and 256 MiB, 3g is twice 2g and 256 MiB: so on H100 80GB and A100 80GB."""
    by_size = {4: 256, 8: 256}
    known: dict[int, int] = {}
    for profile in profiles:
        if profile.values["memory_mib"] is not None:
            known[profile.values["placements"][0]["size"]] = profile.values["memory_mib"]
    for size, extra in by_size.items():
        if size not in known and size // 2 in known:
            known[size] = 2 * known[size // 2] + extra
    if 8 not in known:
        known[8] = int(card["memory_mib"] * USABLE_SHARE) // 64 * 64
    for size in (4, 2, 1):
        known.setdefault(size, (known[size * 2] - 256) // 2 // 64 * 64)
    for profile in profiles:
        if profile.values["memory_mib"] is None:
            size = profile.values["placements"][0]["size"]
            profile.assume("memory_mib", known[size], MEMORY_NOTE)


def _assume_multiprocessors(card: Json, one: Fields, two: Fields, profiles: list[Fields]) -> None:
    if one.values["multiprocessors"] is None:
        one.assume("multiprocessors", card["multiprocessors"] // 8, MULTIPROCESSORS_NOTE)
    smallest = one.values["multiprocessors"]
    if two.values["multiprocessors"] is None:
        two.assume("multiprocessors", 2 * smallest, MULTIPROCESSORS_NOTE)
    for profile in profiles:
        if profile.values["multiprocessors"] is None:
            slices = profile.values["slices"]
            if profile.values["kind"] == 9:
                count = two.values["multiprocessors"] - 6
            else:
                count = card["multiprocessors"] if slices == 7 else slices * smallest
            profile.assume("multiprocessors", max(count, smallest), MULTIPROCESSORS_NOTE)


def _first(profiles: list[Fields], slices: int) -> Fields | None:
    return next((p for p in profiles if p.values["slices"] == slices), None)


def _finished(profiles: list[Fields]) -> list[tuple[Fields, list[Json]]]:
    """Fill the compute profiles' multiprocessors from the GPU-instance profiles' figures."""
    by_slices = {p.values["slices"]: p.values["multiprocessors"] for p in reversed(profiles)}
    finished = []
    for profile in profiles:
        compute = profile.values.pop("compute")
        for fields in compute:
            if fields.values["multiprocessors"] is None:
                whole = fields.values["slices"] == profile.values["slices"]
                count = (
                    profile.values["multiprocessors"]
                    if whole
                    else by_slices[fields.values["slices"]]
                )
                fields.assume("multiprocessors", count, "as the GPU instance of that size")
        finished.append((profile, [fields.as_json() for fields in compute]))
    return finished


def write(target: Path, board: str, content: Json, sources: Json) -> None:
    """One file, in a form that people can read: a field a line."""
    used = sorted(set(re.findall(r'"([A-Za-z0-9._-]+)"', json.dumps(_sources_in(content)))))
    content["sources"] = {
        key: f"{sources[key]['kind']}: {sources[key]['ref']}" if key in sources else _ABSENT[key]
        for key in used
    }
    (target / f"{board}.json").write_text(_render(content) + "\n", encoding="utf-8")


_ABSENT = {PUBLIC: "vendor-doc: the vendor's published specification of the card"}


def _sources_in(value: object) -> list[str]:
    if isinstance(value, dict):
        found = list(value["sources"]) if isinstance(value.get("sources"), list) else []
        return found + [s for v in value.values() for s in _sources_in(v)]
    if isinstance(value, list):
        return [s for v in value for s in _sources_in(v)]
    return []


def _render(value: object, depth: int = 0) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + 2 * depth <= 98 or not isinstance(value, dict | list):
        return flat
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(k)}: {_render(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + "  " * depth + "}"
    parts = [inner + _render(v, depth + 1) for v in value]
    return "[\n" + ",\n".join(parts) + "\n" + "  " * depth + "]"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
