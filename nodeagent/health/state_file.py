"""The state of health written down and read again, so that it outlives the agent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, convert, to_builtins

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.health.findings import Action, Pod, Severity
from nodeagent.health.readings import Source
from nodeagent.health.state import HealthState, Hold, Repair
from nodeagent.health.table import BY_CAUSE
from nodeagent.strict_json import parse_json

FILE_NAME: Final = "health.json"
_LARGEST = 16 * 1024 * 1024  # bytes; 8 GPUs with all their links take 60 KiB

# --- the shapes in the file; their fields have the names of what is remembered ---

# Since 1970 or since boot; the last that a calendar's year 9999 has.
_Seconds = Annotated[float, Meta(ge=0, le=253402300799)]


class _Moment(Struct, array_like=True):
    uptime: _Seconds
    wall: _Seconds


class _Placement(Struct, array_like=True):
    start: int
    size: int


class _Place(Struct):
    gpu: str
    instance: int | None
    compute: int | None
    placement: _Placement | None


class _Finding(Struct):
    check: str
    cause: str
    severity: Severity
    action: Action
    evidence: str
    place: _Place
    since: _Moment
    last: _Moment
    code: int
    count: int
    pid: int
    pods: tuple[Pod, ...]


class _Trail(Struct):
    samples: tuple[tuple[_Seconds, float], ...]


class _Gpu(Struct, rename={"pci_bus_id": "pciBusId", "links_up": "linksUp", "checked": "judged"}):
    index: int
    pci_bus_id: str
    trails: dict[str, _Trail]
    energy: int | None
    recovery: tuple[int, _Seconds] | None
    links_up: frozenset[int]
    checked: frozenset[str]
    placements: dict[int, _Placement]


class _Hold(Struct):
    key: tuple[str, int, str, int, int]
    present: bool
    since: _Seconds


class _RecentXid(Struct):
    gpu: str
    xid: int
    source: Source
    at: _Seconds
    instance: int | None
    compute: int | None


class _XidCount(Struct):
    gpu: str
    xid: int
    instance: int | None
    count: int
    last: _Moment


_NAMES = {
    "boot_id": "bootId",
    "recent_xids": "heard",
    "kernel_log_read": "kernelLogRead",
    "listed_holds": "holds",
}


class _State(Struct, rename=_NAMES):
    version: Literal[1]
    boot_id: str
    at: _Moment | None
    findings: tuple[_Finding, ...]
    gpus: dict[str, _Gpu]
    listed_holds: tuple[_Hold, ...]
    recent_xids: tuple[_RecentXid, ...]
    xids: tuple[_XidCount, ...]
    repairs: tuple[Repair, ...]
    kernel_log_read: int


def encode(state: HealthState) -> bytes:
    """The state as JSON; `decode` reads it back to an equal value."""
    holds = [
        {"key": (cause, code, *ids), "present": hold.present, "since": hold.since}
        for (cause, code, ids), hold in state.holds.items()
    ]
    given = {name: getattr(state, name) for name in state.__slots__}
    given |= {"version": 1, "listed_holds": holds}
    document = {_NAMES.get(name, name): value for name, value in given.items() if name != "holds"}
    shaped = convert(document, _State, from_attributes=True)
    raw: dict[str, Any] = to_builtins(shaped, str_keys=True, order="deterministic")
    for finding in raw["findings"]:
        del finding["check"]  # its cause says it
        finding.update(finding.pop("place"))
    for gpu in raw["gpus"].values():
        gpu["trails"] = {name: trail["samples"] for name, trail in gpu["trails"].items()}
    return json.dumps(raw, separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes, _: int) -> HealthState:
    """The state that was written down; raises an error of some kind for anything else.

    A finding of a cause that this version does not know is left out. The first release wrote the
    same content without a checksum.
    """
    data = parse_json(content)
    data["findings"] = [
        {**finding, "check": BY_CAUSE[finding["cause"]].check.value, "place": finding}
        for finding in data["findings"]
        if finding["cause"] in BY_CAUSE
    ]
    for gpu in data["gpus"].values():
        gpu["trails"] = {name: {"samples": found} for name, found in gpu["trails"].items()}
    shaped = convert(data, _State, str_keys=True)
    holds = {
        (cause, code, (gpu, instance, compute)): Hold(hold.present, hold.since)
        for hold in shaped.listed_holds
        for cause, code, gpu, instance, compute in [hold.key]
    }
    return replace(convert(shaped, HealthState, from_attributes=True), holds=holds)


def health_file(path: Path | None) -> StateFile[HealthState]:
    """The file; `path` None: nothing is kept."""
    return StateFile(
        path,
        StateFormat("health", 2, _LARGEST, encode, decode),
        what="the state of health",
        lost="findings that were reported once and counts of XIDs begin anew after a restart",
        remedy="look with nvidia-smi -q and dmesg for errors that need a reset or a reboot",
    )
