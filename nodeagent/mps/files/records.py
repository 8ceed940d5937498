"""What the next agent has to know of a daemon: what it should be, and which process it is.

One state file for each device, in a directory that is the agent's own. It is written before the
process is started and again when it runs, so that a crash in between leaves a record without a
process, never a process without a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFormat, StateUnusable, read_state, write_state
from nodeagent.mps.processes import CONTROL, Identity
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.strict_json import parse_json

FOLDER = "mps"  # below run.dir, with a directory for each device
_NAME = "record.json"


class RecordUnusable(NodeagentError):
    """The record of a device cannot be used: newer, damaged, or not the agent's own."""

    def __init__(self, device: str, path: Path, message: str) -> None:
        super().__init__(message)
        self.device = device
        self.path = path


@dataclass(frozen=True, slots=True)
class Record:
    """One daemon. `process` None: it was to be started, and perhaps was. `runs`: what the process
    was started as, which may not be what is wanted now. `drained`: a person wanted it down.
    `was_ready`: it was Ready as it is wanted, in this process or one before. `unrecorded`: what is
    `wanted` is only what was found, since the record then could not be used.
    """

    device: str
    wanted: WantedMps
    runs: WantedMps | None = None
    process: Identity | None = None
    drained: bool = False
    was_ready: bool = False
    restarts: int = 0
    unrecorded: bool = False


def write_record(run_dir: Path, record: Record) -> None:
    """Put it in place of any earlier one; the device's directory exists. Raises OSError."""
    write_state(run_dir / FOLDER / record.device / _NAME, _FORMAT, record)


def read_records(run_dir: Path) -> Iterator[Record | RecordUnusable]:
    """All there are, by device; an error in place of one that cannot be used. Blocks."""
    try:
        folders = sorted((run_dir / FOLDER).iterdir())
    except OSError:
        return
    for folder in folders:
        path = folder / _NAME
        if not folder.is_dir():
            continue
        try:
            record = read_state(path, _FORMAT)
        except StateUnusable as error:
            yield RecordUnusable(folder.name, path, error.message)
            continue
        if record is not None and record.device != folder.name:
            message = f"{path} cannot be used: it is the record of {record.device[:80]!r}"
            yield RecordUnusable(folder.name, path, message)
        elif record is not None:
            yield record


# --- as JSON --------------------------------------------------------------------------------------


def _encode(record: Record) -> bytes:
    return f"{json.dumps(_to_json(record))}\n".encode()


def _decode(content: bytes, version: int) -> Record:
    found = parse_json(content)
    if version == 0 and found["version"] != 1:  # it was in the content then
        raise ValueError(f"version {found['version']!r}")
    return _from_json(found)


def _to_json(record: Record) -> dict[str, Any]:
    process = record.process
    return {
        "device": record.device,
        "wanted": _wanted_json(record.wanted),
        "runs": _wanted_json(record.runs) if record.runs else None,
        "process": None
        if process is None
        else [process.pid, process.start_time, process.uid, process.pipe_directory],
        "drained": record.drained,
        "wasReady": record.was_ready,
        "restarts": record.restarts,
        "unrecorded": record.unrecorded,
    }


def _wanted_json(wanted: WantedMps) -> dict[str, Any]:
    sharing, account = wanted.sharing, wanted.account
    return {
        "shares": [[s.name, s.count, s.memory, s.threads, s.path] for s in sharing.shares],
        "enforce": sharing.enforce,
        "account": [account.uid, account.gid, list(account.groups), account.any_user],
        "path": wanted.path,
    }


def _from_json(content: dict[str, Any]) -> Record:
    """Raises what taking apart something else raises."""
    runs = content["runs"]
    return Record(
        device=_text(content["device"]),
        wanted=_wanted(content["wanted"]),
        runs=None if runs is None else _wanted(runs),
        process=_process(content["process"]),
        drained=bool(content["drained"]),
        was_ready=bool(content["wasReady"]),
        restarts=_id(content["restarts"]),
        unrecorded=bool(content.get("unrecorded", False)),
    )


def _wanted(content: dict[str, Any]) -> WantedMps:
    shares = tuple(
        Share(_text(name), _count(count), _count(memory), _percent(threads), _text(path))
        for name, count, memory, threads, path in content["shares"]
    )
    if not shares:
        raise ValueError("no shares")
    uid, gid, groups, any_user = content["account"]
    account = Account(_id(uid), _id(gid), tuple(map(_id, groups)), bool(any_user))
    return WantedMps(Sharing(shares, _text(content["enforce"])), account, _text(content["path"]))


def _process(fields: list[Any] | None) -> Identity | None:
    if fields is None:
        return None
    pid, start_time, uid, pipe_directory = fields
    return Identity(_id(pid), _id(start_time), _id(uid), CONTROL, _text(pipe_directory))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number from 0")
    return value


def _count(value: Any) -> int | None:
    return None if value is None else _id(value)


def _percent(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= 100:
        raise ValueError(f"{value!r} is no percentage")
    return float(value) if type(value) is float else value


_FORMAT = StateFormat("mps-record", 1, 1 << 20, _encode, _decode)
