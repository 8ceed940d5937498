"""Records on disk: what one agent writes is what the next one reads, and nothing else counts."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from nodeagent.claims.model import (
    ClaimAllocation,
    ClaimedDevice,
    ClaimRecord,
    RecordPhase,
    Result,
)
from nodeagent.claims.records import (
    RecordNotKept,
    UnreadableRecord,
    read_records,
    remove_record,
    remove_unfinished,
    write_record,
)
from nodeagent.files.state import StateFormat, write_state
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import Account, Share, Sharing, TimeSlice, WantedMps
from nodeagent.structs import replace
from tests.claims.samples import GPU, UID, mig_device, mig_result, record

COUNTS = st.integers(0, 2**40)
ENTRIES = st.builds(
    ShareEntry,
    st.text(max_size=5),
    st.none() | COUNTS,
    st.none() | COUNTS,
    st.none() | st.floats(0.1, 100),
    st.text(max_size=5),
)
MPS = st.builds(
    MpsEntry,
    st.text(max_size=9),
    st.builds(Shares, st.lists(ENTRIES, max_size=2).map(tuple), st.text(max_size=5))
    | st.builds(Replicas, COUNTS, st.text(max_size=5)),
    st.none() | st.text(max_size=5),
    st.sampled_from(["report", "terminate"]),
    st.booleans(),
)
RESULTS = st.builds(
    Result,
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    st.booleans(),
    st.none() | st.sampled_from(TimeSlice) | MPS,
)
SHARES = st.builds(
    Share,
    st.text(max_size=9),
    st.none() | COUNTS,
    st.none() | COUNTS,
    st.none() | st.floats(0.1, 100),
    st.text(max_size=5),
)
DAEMONS = st.builds(
    WantedMps,
    st.builds(
        Sharing,
        st.lists(SHARES, min_size=1, max_size=2).map(tuple),
        st.sampled_from(["report", "terminate"]),
    ),
    st.builds(Account, COUNTS, COUNTS, st.lists(COUNTS, max_size=2).map(tuple), st.booleans()),
    st.text(max_size=5),
)
PLACEMENTS = st.builds(Placement, st.integers(0, 7), st.integers(1, 8))
DEVICES = st.builds(
    ClaimedDevice,
    RESULTS,
    st.text(max_size=9),
    st.text(max_size=9),
    st.text(max_size=9),
    st.none() | PLACEMENTS,
    st.booleans(),
    st.none() | st.lists(st.tuples(COUNTS, PLACEMENTS), max_size=2).map(tuple),
    st.none() | COUNTS,
    st.none() | COUNTS,
    st.text(max_size=9),
    st.none() | DAEMONS,
)
RECORDS = st.builds(
    ClaimRecord,
    st.just(UID),
    st.text(max_size=9),
    st.text(max_size=9),
    st.sampled_from(RecordPhase),
    st.text(max_size=9),
    st.lists(DEVICES, min_size=1, max_size=3).map(tuple),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the records; it is not there yet."""
    return tmp_path / "lib" / "claims"


def unreadable(folder: Path) -> UnreadableRecord:
    """The one that stands in for the only record."""
    [found] = read_records(folder)
    assert isinstance(found, UnreadableRecord)
    return found


@seed(12)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=RECORDS)
def test_written_and_read(tmp_path: Path, kept: ClaimRecord) -> None:
    """The same, whatever it holds."""
    write_record(tmp_path, kept)
    assert read_records(tmp_path) == (kept,)


def test_a_record_of_this_version_stays_readable(tmp_path: Path) -> None:
    """As a file that release 0.1.0 wrote; of an earlier start of the machine."""
    (tmp_path / f"{UID}.json").write_bytes(Path("tests/data/state/claim.json").read_bytes())
    path = "config[0].mps.clients"
    limits = ShareEntry("clients", None, 8 * 2**30, 25.0, path)
    mps = MpsEntry("config[0].mps", Shares((limits,), path), user="1000")
    made = mig_device(
        result=mig_result(configuration=mps),
        before=((1, Placement(0, 4)),),
        instance=9,
        compute=0,
        uuid="MIG-9",
    )
    gpu = Result("two", "node-1/gpu-4712", "gpu", configuration=TimeSlice.LONG)
    whole = ClaimedDevice(gpu, "GPU-4712", f"nodeagent.io/claim={UID}-2")
    assert read_records(tmp_path) == (record(made, whole),)


# --- what cannot be used --------------------------------------------------------------------------


def test_cut_and_changed_anywhere(folder: Path) -> None:
    """No part of it counts, and all GPUs are held back."""
    write_record(folder, record())
    path = folder / f"{UID}.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        for text in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(text)
            found = unreadable(folder)
            assert (found.uid, found.path, found.gpus) == (UID, path, None)
    path.write_bytes(b"")
    found = unreadable(folder)
    assert "cannot be used" in found.message
    assert "nothing new is created for claims on all GPUs" in found.message
    assert f"rm {path}" in found.remedy


@pytest.mark.parametrize(
    ("content", "gpus"),
    [
        (f'{{"gpus": ["{GPU}"], "record": {{"later": 1}}}}', frozenset({GPU})),
        ('{"gpus": []}', None),
        ('{"gpus": [1]}', None),
        ("[" * 100_000, None),
        ("\xff", None),
    ],
)
def test_of_a_newer_release(folder: Path, content: str, gpus: frozenset[str] | None) -> None:
    """It holds back its GPUs, where it says which they are as every version does."""
    folder.mkdir(parents=True)
    newer: StateFormat[Any] = StateFormat(
        "claim", 2, 1 << 20, lambda _: content.encode("latin1"), lambda _: None
    )
    write_state(folder / f"{UID}.json", newer, None)
    found = unreadable(folder)
    assert "a newer nodeagent wrote it (version 2; this one reads 1)" in found.reason
    assert found.gpus == gpus


def test_the_record_of_another_claim(folder: Path) -> None:
    """As after `cp`: two records of one claim would be two owners of what it has."""
    write_record(folder, record())
    (folder / f"{UID}.json").rename(folder / "77.json")
    assert unreadable(folder).reason == f"it is the record of {UID}"


def test_files_with_other_names(folder: Path) -> None:
    """Are passed over, and what lies beside them is read."""
    write_record(folder, record())
    for name in ("README", "x.json", f"{UID}.json.unusable-1", f"{UID}.yaml", "-1.json"):
        (folder / name).write_text("?")
    (folder / "0.json").mkdir()
    broken, kept = read_records(folder)
    assert isinstance(broken, UnreadableRecord)
    assert (broken.uid, broken.reason) == ("0", "it is a directory and not a regular file")
    assert kept == record()


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """Then any GPU may be a claim's."""
    (tmp_path / "claims").write_text("no folder")
    [found] = read_records(tmp_path / "claims")
    assert isinstance(found, UnreadableRecord)
    assert (found.uid, found.gpus) == ("", None)


@seed(12)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    """Of a file that has the right first line; nothing is raised."""
    form = StateFormat("claim", 1, 1 << 20, lambda _: content, lambda _: None)
    write_state(tmp_path / "0.json", form, None)
    [found] = read_records(tmp_path)
    assert isinstance(found, UnreadableRecord)


# --- what cannot be written -----------------------------------------------------------------------


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file gets more than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most", [0, 100])
def test_a_full_disk(folder: Path, most: int) -> None:
    """The earlier record stays, and nothing else is left; nor is there anything of a first one."""
    with full_disk(most), pytest.raises(RecordNotKept, match="claim team/trainer cannot be kept"):
        write_record(folder, record())
    assert list(folder.iterdir()) == []
    write_record(folder, record(phase=RecordPhase.INTENT))
    with full_disk(most), pytest.raises(RecordNotKept) as caught:
        write_record(folder, record(phase=RecordPhase.MADE))
    assert f"make room in {folder}" in caught.value.remedy
    assert read_records(folder) == (record(phase=RecordPhase.INTENT),)
    assert [entry.name for entry in folder.iterdir()] == [f"{UID}.json"]


def test_a_read_only_file_system() -> None:
    """The error names the file; /proc takes no files of anybody's."""
    with pytest.raises(RecordNotKept, match=rf"\(/proc/claims/{UID}.json\)"):
        write_record(Path("/proc/claims"), record())


def test_a_record_that_cannot_be_removed(folder: Path) -> None:
    """A directory in its place, say."""
    (folder / f"{UID}.json").mkdir(parents=True)
    with pytest.raises(RecordNotKept, match="cannot be removed"):
        remove_record(folder, UID)


@pytest.mark.parametrize("uid", ["", "-", "..", "a/b", "A", "a" * 65, "a\n", "0\0"])
def test_uids_that_are_no_file_names(folder: Path, uid: str) -> None:
    """Nothing is done with them."""
    with pytest.raises(ValueError, match="is not a uid of a claim"):
        record(uid=uid)
    with pytest.raises(ValueError, match="is not a uid of a claim"):
        remove_record(folder, uid)


# --- a crash at each step -------------------------------------------------------------------------

_STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}  # audited; fsync is not


def killed_at(step: int, folder: Path, after: ClaimRecord | None) -> bool:
    """Whether a process that ended in its nth step on files had not done all of them."""
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        left = [step]

        def count(event: str, _: tuple[object, ...]) -> None:
            if event in _STEPS:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)

        sys.addaudithook(cast("Any", count))
        try:
            if after is None:
                remove_record(folder, UID)
            else:
                write_record(folder, after)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("before", [None, record(phase=RecordPhase.INTENT)])
@pytest.mark.parametrize("after", [record(phase=RecordPhase.MADE), None])
def test_a_crash_at_each_step(
    folder: Path, before: ClaimRecord | None, after: ClaimRecord | None
) -> None:
    """There is the earlier record or the later one; the next write or removal leaves no trace."""
    step = 0
    while True:
        remove_record(folder, UID)
        if before is not None:
            write_record(folder, before)
        killed = killed_at(step, folder, after)
        found = read_records(folder)
        kept: list[tuple[object, ...]] = [() if r is None else (r,) for r in (before, after)]
        assert found in kept
        if not killed:
            break
        if folder.exists():
            remove_unfinished(folder)
            assert len(list(folder.iterdir())) == len(found)
        step += 1
    assert found == (() if after is None else (after,))
    assert step >= 3 or after is None


# --- the same claim again -------------------------------------------------------------------------


def test_a_claim_that_is_asked_for_again() -> None:
    """It is the same when its results are, in whatever order; else what it had goes first."""
    two = mig_device(result=replace(mig_result(), device="mig-1g-10gb-5"))
    kept = record(mig_device(), two)
    results = kept.results
    same = ClaimAllocation(UID, "team", "trainer", results[::-1])
    assert kept.is_of(same)
    for other in (
        results[:1],
        (*results, mig_result(device="gpu")),
        (results[0], replace(results[1], configuration=TimeSlice.LONG)),
        (results[0], replace(results[1], share_id="1")),
    ):
        assert not kept.is_of(replace(same, results=other))
