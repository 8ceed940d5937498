"""What the next agent has to know of a daemon: what it should be, and which process it is.

One file for each device, in a directory that is the agent's own. It is written before the process
is started and again when it runs, so that a crash in between leaves a record without a process,
never a process without a record.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.errors import NodeagentError
from nodeagent.mps.identity import CONTROL, Identity
from nodeagent.planning.shares import Account, Share, Sharing, WantedMps

FOLDER = "mps"  # below run.dir, with a directory for each device
_NAME = "record.json"
_VERSION = 1
_LARGEST = 1 << 20  # bytes


class RecordDamaged(NodeagentError):
    """The record of a device cannot be understood, or is not the agent's own."""

    def __init__(self, device: str, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.device = device


@dataclass(frozen=True, slots=True)
class Record:
    """One daemon. `process` None: it was to be started, and perhaps was. `runs`: what the process
    was told to be, which may not be what is wanted now. `drained`: a person wanted it down.
    `was_ready`: it was Ready as it is wanted, in this process or one before.
    """

    device: str
    wanted: WantedMps
    runs: WantedMps | None = None
    process: Identity | None = None
    drained: bool = False
    was_ready: bool = False
    restarts: int = 0


class RecordKeeper:
    """Keeps one daemon's record as it has to be; `failed` hears once what could not be written."""

    def __init__(self, run_dir: Path, failed: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._failed = failed
        self._kept: Record | None = None

    def keep(self, record: Record) -> None:
        """Write it, if it is different."""
        if record == self._kept:
            return
        try:
            write_record(self._run_dir, record)
        except FileNotFoundError:
            return  # the directory is made when the daemon is started, and it is written then
        except OSError as error:
            self._failed(f"its record for the next agent cannot be written: {error.strerror}")
        self._kept = record


def write_record(run_dir: Path, record: Record) -> None:
    """Put it in place of any earlier one; the device's directory exists. Raises OSError."""
    folder = run_dir / FOLDER / record.device
    new = folder / f".{_NAME}.new"
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(_to_json(record), file)
    new.replace(folder / _NAME)


def read_records(run_dir: Path) -> Iterator[Record | RecordDamaged]:
    """All there are, by device; an error in place of one that is damaged. Blocks on the disk."""
    try:
        folders = sorted((run_dir / FOLDER).iterdir())
    except OSError:
        return
    for folder in folders:
        path = folder / _NAME
        try:
            text = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _damaged(path, error.strerror or str(error))
            continue
        except RecordDamaged as error:
            yield error
            continue
        try:
            yield _from_json(json.loads(text), folder.name)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            yield _damaged(path, f"{type(error).__name__}: {error}")


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise _damaged(path, f"it is no plain file of user {os.geteuid()}")
        if found.st_size > _LARGEST:
            raise _damaged(path, f"it has {found.st_size} bytes")
        return file.read()


def _damaged(path: Path, why: str) -> RecordDamaged:
    return RecordDamaged(
        path.parent.name,
        f"{path} does not tell what the MPS daemon there should be: {why}",
        remedy=f"end that daemon if it still runs, then remove {path.parent}",
    )


# --- as JSON --------------------------------------------------------------------------------------


def _to_json(record: Record) -> dict[str, Any]:
    process = record.process
    return {
        "version": _VERSION,
        "device": record.device,
        "wanted": _wanted_json(record.wanted),
        "runs": _wanted_json(record.runs) if record.runs else None,
        "process": None
        if process is None
        else [process.pid, process.start_time, process.uid, process.pipe_directory],
        "drained": record.drained,
        "wasReady": record.was_ready,
        "restarts": record.restarts,
    }


def _wanted_json(wanted: WantedMps) -> dict[str, Any]:
    sharing, account = wanted.sharing, wanted.account
    return {
        "shares": [[s.name, s.count, s.memory, s.threads, s.path] for s in sharing.shares],
        "enforce": sharing.enforce,
        "account": [account.uid, account.gid, list(account.groups), account.any_user],
        "path": wanted.path,
    }


def _from_json(content: dict[str, Any], device: str) -> Record:
    """Raises what taking apart something else raises."""
    if content["version"] != _VERSION or content["device"] != device:
        raise ValueError(f"version {content['version']!r} of {content['device']!r}")
    runs = content["runs"]
    return Record(
        device=device,
        wanted=_wanted(content["wanted"]),
        runs=None if runs is None else _wanted(runs),
        process=_process(content["process"]),
        drained=bool(content["drained"]),
        was_ready=bool(content["wasReady"]),
        restarts=_id(content["restarts"]),
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
