"""The state of health written down and read again, so that it outlives the agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.health.findings import Action, Finding, Key, Moment, Place, Pod, Severity
from nodeagent.health.readings import Source
from nodeagent.health.state import GpuHistory, HealthState, Hold, RecentXid, Repair, Trail, XidCount
from nodeagent.health.table import BY_CAUSE
from nodeagent.plan.observed import Placement
from nodeagent.strict_json import parse_json

Json = dict[str, Any]
T = TypeVar("T")

_VERSION = 1
_LATEST = 253402300799.0  # seconds since 1970; the last that a calendar's year 9999 has


def state_json(state: HealthState) -> Json:
    """The state as JSON; `state_of` reads it back to an equal value."""
    return {
        "version": _VERSION,
        "bootId": state.boot_id,
        "at": None if state.at is None else _moment(state.at),
        "findings": [_finding(f) for f in state.findings],
        "gpus": {uuid: _past(past) for uuid, past in state.gpus.items()},
        "holds": [
            {"key": _key(key), "present": hold.present, "since": hold.since}
            for key, hold in state.holds.items()
        ],
        "heard": [asdict(h) for h in state.recent_xids],
        "xids": [{**asdict(c), "last": _moment(c.last)} for c in state.xids],
        "repairs": [asdict(r) for r in state.repairs],
        "kernelLogRead": state.kernel_log_read,
    }


def state_of(data: Any) -> HealthState:
    """The state that was written down; raises an AttributeError, LookupError, TypeError or
    ValueError for anything else.

    A finding of a cause that this version does not know is left out.
    """
    if data["version"] != _VERSION:
        raise ValueError(f"version {data['version']!r}")
    return HealthState(
        boot_id=_text(data["bootId"]),
        at=_maybe(data["at"], _moment_of),
        findings=tuple(_finding_of(f) for f in data["findings"] if f["cause"] in BY_CAUSE),
        gpus={_text(uuid): _past_of(past) for uuid, past in data["gpus"].items()},
        holds={
            _key_of(h["key"]): Hold(bool(h["present"]), _seconds(h["since"])) for h in data["holds"]
        },
        recent_xids=tuple(
            RecentXid(
                gpu=_text(h["gpu"]),
                xid=_whole(h["xid"]),
                source=Source(h["source"]),
                at=_seconds(h["at"]),
                instance=_maybe(h["instance"], _whole),
                compute=_maybe(h["compute"], _whole),
            )
            for h in data["heard"]
        ),
        xids=tuple(
            XidCount(
                gpu=_text(c["gpu"]),
                xid=_whole(c["xid"]),
                instance=_maybe(c["instance"], _whole),
                count=_whole(c["count"]),
                last=_moment_of(c["last"]),
            )
            for c in data["xids"]
        ),
        repairs=tuple(
            Repair(_text(r["gpu"]), _whole(r["xid"]), _seconds(r["wall"])) for r in data["repairs"]
        ),
        kernel_log_read=_whole(data["kernelLogRead"]),
    )


def _maybe(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _figure(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _seconds(value: object) -> float:
    """Since 1970 or since boot."""
    seconds = _figure(value)
    if not 0 <= seconds <= _LATEST:
        raise ValueError(f"{value!r} seconds are no time")
    return seconds


def _moment(moment: Moment) -> list[float]:
    return [moment.uptime, moment.wall]


def _moment_of(value: Any) -> Moment:
    uptime, wall = value
    return Moment(_seconds(uptime), _seconds(wall))


def _key(key: Key) -> list[Any]:
    cause, code, ids = key
    return [cause, code, *ids]


def _key_of(value: Any) -> Key:
    cause, code, gpu, instance, compute = value
    return (_text(cause), _whole(code), (_text(gpu), _whole(instance), _whole(compute)))


def _placement(placement: Placement) -> list[int]:
    return [placement.start, placement.size]


def _placement_of(value: Any) -> Placement:
    start, size = value
    return Placement(_whole(start), _whole(size))


def _finding(finding: Finding) -> Json:
    place = finding.place
    return {
        "cause": finding.cause,
        "severity": finding.severity.value,
        "action": finding.action.value,
        "evidence": finding.evidence,
        "gpu": place.gpu,
        "instance": place.instance,
        "compute": place.compute,
        "placement": _maybe(place.placement, _placement),
        "since": _moment(finding.since),
        "last": _moment(finding.last),
        "code": finding.code,
        "count": finding.count,
        "pid": finding.pid,
        "pods": [asdict(pod) for pod in finding.pods],
    }


def _finding_of(value: Any) -> Finding:
    cause = _text(value["cause"])
    return Finding(
        check=BY_CAUSE[cause].check.value,
        cause=cause,
        severity=Severity(value["severity"]),
        action=Action(value["action"]),
        evidence=_text(value["evidence"]),
        place=Place(
            _text(value["gpu"]),
            _maybe(value["instance"], _whole),
            _maybe(value["compute"], _whole),
            _maybe(value["placement"], _placement_of),
        ),
        since=_moment_of(value["since"]),
        last=_moment_of(value["last"]),
        code=_whole(value["code"]),
        count=_whole(value["count"]),
        pid=_whole(value["pid"]),
        pods=tuple(
            Pod(_text(p["namespace"]), _text(p["name"]), _text(p["container"]))
            for p in value["pods"]
        ),
    )


def _past(past: GpuHistory) -> Json:
    return {
        "index": past.index,
        "pciBusId": past.pci_bus_id,
        "trails": {name: [list(s) for s in trail.samples] for name, trail in past.trails.items()},
        "energy": past.energy,
        "recovery": _maybe(past.recovery, list),
        "linksUp": sorted(past.links_up),
        "judged": sorted(past.checked),
        "placements": {str(i): _placement(p) for i, p in past.placements.items()},
    }


def _past_of(value: Any) -> GpuHistory:
    return GpuHistory(
        index=_whole(value["index"]),
        pci_bus_id=_text(value["pciBusId"]),
        trails={_text(name): _trail_of(samples) for name, samples in value["trails"].items()},
        energy=_maybe(value["energy"], _whole),
        recovery=_maybe(value["recovery"], lambda pair: (_whole(pair[0]), _seconds(pair[1]))),
        links_up=frozenset(map(_whole, value["linksUp"])),
        checked=frozenset(map(_text, value["judged"])),
        placements=_placements_of(value["placements"]),
    )


def _placements_of(value: Mapping[str, Any]) -> dict[int, Placement]:
    return {int(instance): _placement_of(place) for instance, place in value.items()}


def _trail_of(samples: Iterable[Any]) -> Trail:
    return Trail(tuple((_seconds(at), _figure(count)) for at, count in samples))


# --- the file ---

FILE_NAME: Final = "health.json"
_LARGEST = 16 * 1024 * 1024  # bytes; 8 GPUs with all their links take 60 KiB


def health_file(path: Path | None) -> StateFile[HealthState]:
    """The file; `path` None: nothing is kept."""
    return StateFile(
        path,
        _FORMAT,
        what="the state of health",
        lost="findings that were reported once and counts of XIDs begin anew after a restart",
        remedy="look with nvidia-smi -q and dmesg for errors that need a reset or a reboot",
    )


def _encoded(state: HealthState) -> bytes:
    return json.dumps(state_json(state), separators=(",", ":"), allow_nan=False).encode()


def _decoded(content: bytes, _: int) -> HealthState:
    """The first release wrote the same content without a checksum."""
    return state_of(parse_json(content))


_FORMAT: Final[StateFormat[HealthState]] = StateFormat("health", 2, _LARGEST, _encoded, _decoded)
