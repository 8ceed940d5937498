"""The state of health written down and read again, so that it outlives the agent.

The file has the fields of `HealthState`, some under other names;
placements and trails of counters are lists in it, and a finding has the fields of its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import convert, to_builtins

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.health.findings import Finding, Place
from nodeagent.health.state import GpuHistory, HealthState
from nodeagent.health.table import BY_CAUSE, Check
from nodeagent.strict_json import parse_json
from nodeagent.structs import Struct

FILE_NAME: Final = "health.json"
_CHECKS: Final = frozenset(Check)
_LARGEST = 16 * 1024 * 1024  # bytes; 8 GPUs with all their links take 60 KiB

_NAMES: Final = {  # in the file, where another than the field's
    "boot_id": "bootId",
    "recent_xids": "heard",
    "kernel_log_read": "kernelLogRead",
    "pci_bus_id": "pciBusId",
    "links_up": "linksUp",
    "checked": "judged",
}


def encode(state: HealthState) -> bytes:
    """The state as JSON; `decode` reads it back to an equal value."""
    raw = to_builtins(state, str_keys=True, order="deterministic")
    for finding in raw["findings"]:
        del finding["check"]  # its cause says it
        place = finding.pop("place")
        finding |= {**place, "placement": _ends(place["placement"])}
    for gpu in raw["gpus"].values():
        gpu["trails"] = {name: trail["samples"] for name, trail in gpu["trails"].items()}
        gpu["placements"] = {number: _ends(place) for number, place in gpu["placements"].items()}
    raw["gpus"] = {uuid: _as_in_file(gpu) for uuid, gpu in raw["gpus"].items()}
    return json.dumps(_as_in_file(raw), separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes) -> HealthState:
    """The state that was written down; raises an error of some kind for anything else.

    Findings of causes that this version does not know are left out, and so are its unknown checks.
    """
    data = parse_json(content)
    raw = _from_file(data, HealthState)
    raw["findings"] = [_finding(found) for found in raw["findings"] if found["cause"] in BY_CAUSE]
    raw["gpus"] = {uuid: _gpu(gpu) for uuid, gpu in raw["gpus"].items()}
    return convert(raw, HealthState, str_keys=True)


def _finding(found: dict[str, Any]) -> dict[str, Any]:
    place = _from_file({**found, "placement": _placement(found["placement"])}, Place)
    check = BY_CAUSE[found["cause"]].check.value
    return _from_file({**found, "check": check, "place": place}, Finding)


def _gpu(found: dict[str, Any]) -> dict[str, Any]:
    gpu = _from_file(found, GpuHistory)
    gpu["checked"] = [check for check in gpu["checked"] if check in _CHECKS]
    gpu["trails"] = {name: {"samples": samples} for name, samples in gpu["trails"].items()}
    gpu["placements"] = {number: _placement(ends) for number, ends in gpu["placements"].items()}
    return gpu


def _as_in_file(raw: dict[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in raw.items()}


def _from_file(data: dict[str, Any], shape: type[Struct]) -> dict[str, Any]:
    """The fields of `shape` that are there, by their names."""
    names = ((name, _NAMES.get(name, name)) for name in shape.__struct_fields__)
    return {name: data[key] for name, key in names if key in data}


def _ends(placement: dict[str, int] | None) -> list[int] | None:
    return None if placement is None else [placement["start"], placement["size"]]


def _placement(ends: Iterable[int] | None) -> dict[str, int] | None:
    return None if ends is None else dict(zip(("start", "size"), ends, strict=True))


def health_file(path: Path | None) -> StateFile[HealthState]:
    """The file; `path` None: nothing is kept."""
    return StateFile(
        path,
        StateFormat("health", 1, _LARGEST, encode, decode),
        what="the state of health",
        lost="findings that were reported once and counts of XIDs begin anew after a restart",
        remedy="`nvidia-smi -q` and `dmesg | grep NVRM` show errors that need a reset or a reboot",
    )
