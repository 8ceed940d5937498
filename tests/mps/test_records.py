"""The record of a daemon, as a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.files.state import StateFormat, write_state
from nodeagent.mps.files.records import Record, RecordUnusable, read_records, write_record
from nodeagent.mps.processes import CONTROL, MpsProcess
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.mps.fleet_rig import wanted

A_PLAN = WantedMps(Sharing((Share("a", 1, 5, 2.0),), "report"), Account(1000, 1000, (44,)))
A_PROCESS = MpsProcess(4711, 12, 1000, CONTROL, "/run/x/pipe")
ONE = Record(
    *("GPU-1", A_PLAN, wanted(None, None), A_PROCESS),
    drained=True,
    was_ready=True,
    restarts=3,
    unrecorded=True,
    left=(A_PROCESS,),
)


def folder(run_dir: Path) -> Path:
    made = run_dir / "mps" / "GPU-1"
    made.mkdir(parents=True, exist_ok=True)
    return made


def test_where_there_is_none(tmp_path: Path) -> None:
    assert list(read_records(tmp_path)) == []
    folder(tmp_path)
    (tmp_path / "mps/notes").mkdir()
    (tmp_path / "mps/GPU-2").touch()
    [error] = read_records(tmp_path)
    assert isinstance(error, RecordUnusable)
    assert (error.device, error.path) == ("GPU-1", None)


def changed(tmp_path: Path, **changes: Any) -> Path:
    """A record with these keys, and a checksum that is right."""
    folder(tmp_path)
    write_record(tmp_path, ONE)
    assert list(read_records(tmp_path)) == [ONE]
    path = folder(tmp_path) / "record.json"
    content = json.loads(path.read_text().partition("\n")[2])
    form: StateFormat[bytes] = StateFormat("mps-record", 1, 1 << 20, bytes, bytes)
    write_state(path, form, json.dumps({**content, **changes}).encode())
    return path


def unusable(tmp_path: Path) -> str:
    [error] = read_records(tmp_path)
    assert isinstance(error, RecordUnusable)
    assert error.device == "GPU-1"
    assert error.path == folder(tmp_path) / "record.json"
    return error.message


def _wanted(shares: list[Any]) -> Any:
    account = {"uid": 1, "gid": 1}
    return {"sharing": {"shares": shares, "enforce": "report"}, "account": account}


def _process(pid: Any) -> Any:
    return {"pid": pid, "start_time": 1, "uid": 1, "program": CONTROL, "pipe_directory": "x"}


def test_what_is_believed(tmp_path: Path) -> None:
    """So that the cases below differ from a usable record in one thing alone."""
    shares = [{"name": "a", "count": 1, "memory": 1, "threads": 1.0}]
    changed(tmp_path, wanted=_wanted(shares), process=_process(1))
    [record] = read_records(tmp_path)
    assert isinstance(record, Record)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "GPU-2"},
        {"wanted": None},
        {"wanted": _wanted(shares=[])},
        {"wanted": _wanted(shares=[{"name": "a", "count": -1, "memory": 1, "threads": 1.0}])},
        {"wanted": _wanted(shares=[{"name": "a", "count": 1, "memory": 1, "threads": 0.0}])},
        {"process": _process(pid="1")},
        {"process": _process(pid=True)},
        {"process": _process(pid=-1)},
        {"process": {"pid": 1}},
        {"restarts": -1},
        {"runs": 5},
    ],
)
def test_what_is_not_believed(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = changed(tmp_path, **changes)
    assert f"{path} cannot be used" in unusable(tmp_path)
