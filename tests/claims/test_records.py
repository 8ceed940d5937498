"""Records on disk: what one agent writes is what the next one reads, and nothing else counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.model import (
    ClaimAllocation,
    ClaimedDevice,
    Result,
)
from nodeagent.claims.records import (
    RecordNotKept,
    UnreadableRecord,
    read_records,
    remove_record,
    write_record,
)
from nodeagent.files.state import StateFormat, write_state
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import Account, Share, Sharing, TimeSlice, WantedMps
from nodeagent.structs import replace
from tests.claims.samples import GPU, UID, mig_device, mig_result, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the records; it is not there yet."""
    return tmp_path / "lib" / "claims"


def unreadable(folder: Path) -> UnreadableRecord:
    """The one that stands in for the only record."""
    [found] = read_records(folder)
    assert isinstance(found, UnreadableRecord)
    return found


def test_written_and_read_in_all_releases(tmp_path: Path) -> None:
    """The file that release 0.1.0 wrote, and one with everything that a record can have."""
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
    shared = MpsEntry("\u00e9", Replicas(2, ""), enforce="terminate", oversubscribe=True)
    daemon = WantedMps(Sharing((Share("a", 1, 2, 0.1),), "report"), Account(1, 2, (3,), True))
    more = replace(made, result=mig_result(share_id="1", configuration=shared), mps=daemon)
    kept = record(more, replace(whole, result=mig_result(admin_access=True)), since=5.0)
    write_record(tmp_path, kept)
    assert read_records(tmp_path) == (kept,)


# --- what cannot be used --------------------------------------------------------------------------


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


# --- what cannot be written -----------------------------------------------------------------------


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
