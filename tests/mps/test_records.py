"""What one agent writes is what the next one reads, and nothing else is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.files.state import StateFormat, write_state
from nodeagent.mps.files.records import (
    Record,
    RecordUnusable,
    read_records,
    write_record,
)
from nodeagent.mps.processes import CONTROL, MpsProcess
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps

SHARES = st.builds(
    Share,
    st.text(min_size=1, max_size=8),
    st.none() | st.integers(0, 99),
    st.none() | st.integers(1, 10**6),
    st.none() | st.floats(0.1, 100),
    st.text(max_size=8),
)
WANTED = st.builds(
    WantedMps,
    st.builds(
        Sharing, st.lists(SHARES, min_size=1, max_size=3).map(tuple), st.sampled_from(["report"])
    ),
    st.builds(
        Account,
        st.integers(0, 2**31),
        st.integers(0, 2**31),
        st.lists(st.integers(0, 99), max_size=2).map(tuple),
        st.booleans(),
    ),
    st.text(max_size=5),
)
PROCESS = st.builds(
    MpsProcess,
    st.integers(1, 2**22),
    st.integers(0, 2**60),
    st.integers(0, 2**31),
    st.just(CONTROL),
    st.text(max_size=9),
)
RECORDS = st.builds(
    Record,
    st.just("GPU-1"),
    WANTED,
    st.none() | WANTED,
    st.none() | PROCESS,
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
ONE = Record("GPU-1", WantedMps(Sharing((Share("a", 1, 5, 2.0),), "report"), Account(1000, 1000)))


def folder(run_dir: Path) -> Path:
    """Of the device's."""
    made = run_dir / "mps" / "GPU-1"
    made.mkdir(parents=True, exist_ok=True)
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=RECORDS)
def test_written_and_read(tmp_path: Path, record: Record) -> None:
    """The same, whatever it holds."""
    folder(tmp_path)
    write_record(tmp_path, record)
    assert list(read_records(tmp_path)) == [record]


def test_where_there_is_none(tmp_path: Path) -> None:
    """No folder, or one without a record, or what is no folder at all."""
    assert list(read_records(tmp_path)) == []
    folder(tmp_path)
    (tmp_path / "mps" / "file").touch()
    assert list(read_records(tmp_path)) == []


def changed(tmp_path: Path, **changes: Any) -> Path:
    """A record with these keys, and a checksum that is right."""
    folder(tmp_path)
    write_record(tmp_path, ONE)
    path = folder(tmp_path) / "record.json"
    content = json.loads(path.read_text().partition("\n")[2])
    form: StateFormat[bytes] = StateFormat("mps-record", 1, 1 << 20, bytes, bytes)
    write_state(path, form, json.dumps({**content, **changes}).encode())
    return path


def unusable(tmp_path: Path) -> str:
    """The error of the one record."""
    [error] = read_records(tmp_path)
    assert isinstance(error, RecordUnusable)
    assert error.device == "GPU-1"
    assert error.path == folder(tmp_path) / "record.json"
    return str(error)


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
    """Each is reported with the path."""
    path = changed(tmp_path, **changes)
    assert f"{path} cannot be used" in unusable(tmp_path)


def test_cut_and_changed_anywhere(tmp_path: Path) -> None:
    """No part of it is believed, and a byte that flips is found wherever it is."""
    place = folder(tmp_path) / "record.json"
    write_record(tmp_path, ONE)
    whole = place.read_bytes()
    for at in range(len(whole)):
        for text in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            place.write_bytes(text)
            unusable(tmp_path)


def test_a_newer_record(tmp_path: Path) -> None:
    """Is reported as newer, where its checksum is right."""
    newer = StateFormat("mps-record", 2, 1 << 20, lambda _: b"{}\n", lambda _: ONE)
    folder(tmp_path)
    write_state(folder(tmp_path) / "record.json", newer, ONE)
    assert "a newer nodeagent wrote it (version 2; this one reads 1)" in unusable(tmp_path)


def test_a_record_that_is_not_the_agents(tmp_path: Path) -> None:
    """A symlink, and on a node where users have files there, another user's."""
    place = folder(tmp_path)
    write_record(tmp_path, ONE)
    (place / "record.json").rename(tmp_path / "elsewhere")
    (place / "record.json").symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in unusable(tmp_path)
    if os.geteuid() == 0:
        (place / "record.json").unlink()
        write_record(tmp_path, ONE)
        os.chown(place / "record.json", 1000, 1000)
        assert "it belongs to uid 1000" in unusable(tmp_path)
