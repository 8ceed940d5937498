"""Records: what one agent writes is what the next one reads, and nothing else counts; what claims
have stays where none are served, and where a later release has written their records.
"""

from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims import records
from nodeagent.claims.model import ClaimedDevice, Result
from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFormat, write_state
from nodeagent.gpu.kernel import boot_id
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import Placement
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import Account, Share, Sharing, TimeSlice, WantedMps
from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from nodeagent.views.node_state import Phase
from tests.claims.machine import UIDS, Home, laid_out, pool_of
from tests.claims.samples import GPU, UID, mig_device, mig_result, record
from tests.rig import Rig, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "claims"


def unreadable(folder: Path) -> records.UnreadableRecord:
    [found] = records.read_records(folder)
    assert isinstance(found, records.UnreadableRecord)
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
    assert records.read_records(tmp_path) == (record(made, whole),)
    shared = MpsEntry("\u00e9", Replicas(2, ""), enforce="terminate", oversubscribe=True)
    daemon = WantedMps(Sharing((Share("a", 1, 2, 0.1),), "report"), Account(1, 2, (3,), True))
    more = replace(made, result=mig_result(share_id="1", configuration=shared), mps=daemon)
    kept = record(more, replace(whole, result=mig_result(admin_access=True)), since=5.0)
    records.write_record(tmp_path, kept)
    assert records.read_records(tmp_path) == (kept,)


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
    records.write_record(folder, record())
    (folder / f"{UID}.json").rename(folder / "77.json")
    assert unreadable(folder).reason == f"it is the record of {UID}"


def test_files_with_other_names(folder: Path) -> None:
    records.write_record(folder, record())
    for name in ("README", "x.json", f"{UID}.json.unusable", f"{UID}.yaml", "-1.json"):
        (folder / name).write_text("?")
    (folder / "0.json").mkdir()
    broken, kept = records.read_records(folder)
    assert isinstance(broken, records.UnreadableRecord)
    assert (broken.uid, broken.reason) == ("0", "it is a directory and not a regular file")
    assert kept == record()


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """Then any GPU may be a claim's."""
    (tmp_path / "claims").write_text("no folder")
    [found] = records.read_records(tmp_path / "claims")
    assert isinstance(found, records.UnreadableRecord)
    assert (found.uid, found.gpus) == ("", None)


# --- what cannot be written -----------------------------------------------------------------------


def test_a_read_only_file_system() -> None:
    """The error names the file; /proc takes no files of anybody's."""
    with pytest.raises(records.RecordNotKept, match=rf"\(/proc/claims/{UID}.json\)"):
        records.write_record(Path("/proc/claims"), record())


def test_a_record_that_cannot_be_removed(folder: Path) -> None:
    (folder / f"{UID}.json").mkdir(parents=True)
    with pytest.raises(records.RecordNotKept, match="cannot be removed"):
        records.remove_record(folder, UID)


@pytest.mark.parametrize("uid", ["", "-", "..", "a/b", "A", "a" * 65, "a\n", "0\0"])
def test_uids_that_are_no_file_names(folder: Path, uid: str) -> None:
    with pytest.raises(ValueError, match="is not a uid of a claim"):
        record(uid=uid)
    with pytest.raises(ValueError, match="is not a uid of a claim"):
        records.remove_record(folder, uid)


# --- the same claim again -------------------------------------------------------------------------


def test_a_claim_that_is_asked_for_again() -> None:
    """It is the same when its results are, in whatever order; else what it had goes first."""
    two = mig_device(result=replace(mig_result(), device="mig-1g-10gb-5"))
    kept = record(mig_device(), two)
    results = kept.results
    assert kept.is_of(results[::-1])
    for other in (
        results[:1],
        (*results, mig_result(device="gpu")),
        (results[0], replace(results[1], configuration=TimeSlice.LONG)),
        (results[0], replace(results[1], share_id="1")),
    ):
        assert not kept.is_of(other)


# --- where none are served ------------------------------------------------------------------------


SLICE = "mig-1g-10gb-2"


async def prepared(node: SimulatedNode, home: Home, *, boot: str) -> None:
    """An agent of that start of the machine has made a slice; nothing runs on it."""
    home.boot_id = boot
    async with home.core() as (claims, _):
        await claims.prepare(*home.claim(0, (pool_of(node), SLICE)))


async def test_an_agent_that_serves_no_claims(node: SimulatedNode, home: Home) -> None:
    """A plan that needs the place waits and names the claim; one that fits beside it is done."""
    await prepared(node, home, boot=boot_id())
    kept = records.UnservedRecords.read(home.records_dir)
    [problem] = kept.problems
    assert (problem.code, problem.message) == (
        Code.IN_USE,
        "claims are not served (dra.mode), and what these have is kept: claim team/trainer-0",
    )
    rig = Rig(home.folder, with_claims=kept.with_claims)
    async with running(rig):
        await rig.reach("{7g.80gb: 1}", Phase.BLOCKED)
        assert "claim team/trainer-0" in rig.state.problems[0].message
        assert [laid_out(node, gpu) for gpu in range(2)] == [[(2, 1)], [(0, 8)]]
        await rig.reach("{3g.40gb: 1}")
        assert laid_out(node) == [(2, 1), (4, 4)]


@pytest.mark.parametrize("content", [None, "{}", "newer"])
async def test_records_of_another_start_and_unreadable_ones(
    node: SimulatedNode, home: Home, content: str | None
) -> None:
    """What was made before a reboot is gone; a record that cannot be used holds back its GPUs."""
    await prepared(node, home, boot="first")
    if content:
        (home.records_dir / f"{UIDS[0]}.json").write_text(content)
    left = records.UnservedRecords.read(home.records_dir)
    assert [problem.code for problem in left.problems] == [Code.STATE_FILE] * bool(content)
    rig = Rig(home.folder, with_claims=left.with_claims)
    async with running(rig):
        await rig.reach("{7g.80gb: 1}", Phase.BLOCKED if content else Phase.IN_SYNC)
        assert laid_out(node) == ([(2, 1)] if content else [(0, 8)])


# --- of a later release ---------------------------------------------------------------------------


FIRST = 4711  # the pod's process


def claims_of(home: Home, node: SimulatedNode) -> list[tuple[str, str, str]]:
    """A slice of the first card, and all of the second; both have pods that run."""
    keys = (pool_of(node), "mig-1g-10gb-2"), (pool_of(node, 1), "gpu")
    names = [home.claim(number, key) for number, key in enumerate(keys)]
    for name, key in zip(names, keys, strict=True):
        home.run_pod(name, key)
    return names


async def test_before_a_later_release(node: SimulatedNode, home: Home) -> None:
    """Of a claim that a newer agent recorded, nothing is touched until that release is back: who
    asks for it, or for a place beside it, reads why. Other cards go on.
    """
    names = claims_of(home, node)
    async with home.core() as (claims, _):
        devices = [await claims.prepare(*name) for name in names]
    node.occupy(devices[0][0].uuid, pid=FIRST, command="train")
    path = home.records_dir / f"{UIDS[0]}.json"
    content, gpu = path.read_bytes(), devices[0][0].gpu
    later = f'{{"gpus": ["{gpu}"], "record": {{"of": "the future"}}}}'.encode()
    newer: StateFormat[Any] = StateFormat("claim", 2, 1 << 20, lambda _: later, lambda _: None)
    write_state(path, newer, None)
    files = home.files()
    message = (
        f"the record of a claim, {path}, cannot be used: a newer nodeagent wrote it (version 2; "
        f"this one reads 1); nothing new is created for claims on {gpu}"
    )
    home.pods = []
    async with home.core() as (claims, _):
        [problem] = claims.store.problems
        assert problem.message == message
        assert problem.remedy == (
            "start the release that wrote it; or check with nvidia-smi mig -lgi that the claim's "
            "instances are gone, and with nodeagent mps status that its MPS daemon is (nodeagent "
            f"mps drain DEVICE ends it), and rm {path}; the agent looks again "
            "within a minute"
        )
        for asked in (claims.prepare(*names[0]), claims.release(UIDS[0])):
            with pytest.raises(NodeagentError) as refused:
                await asked
            assert refused.value.message == message
        with pytest.raises(NodeagentError, match="a newer nodeagent wrote it"):
            await claims.prepare(*home.claim(2, (pool_of(node), "mig-1g-10gb-5")))
        await home.upkeep(claims).round()
        assert (laid_out(node), home.files()) == ([(2, 1)], files)
        assert [process.pid for process in node.card(0).state.processes] == [FIRST]
        assert await claims.prepare(*names[1]) == devices[1]
        await claims.release(UIDS[1])
        assert home.records() == [path.name]
    path.write_bytes(content)
    async with home.core() as (claims, _):
        assert claims.store.problems == ()
        assert await claims.prepare(*names[0]) == devices[0]


# --- the driver's name ----------------------------------------------------------------------------


def test_the_name_that_claims_are_held_by(folder: Path) -> None:
    """It stays until they are released, with the claims and both ways out; a record of an earlier
    release, which has no name, is of the agent's own.
    """
    own, nvidias = "gpu.nodeagent.io", "gpu.nvidia.com"
    assert records.driver_in_force(nvidias, ()) == (nvidias, None)
    records.write_record(folder, record())
    path = folder / f"{UID}.json"
    assert '"driver": "gpu.nodeagent.io"' in path.read_text()
    name, problem = records.driver_in_force(nvidias, records.read_records(folder))
    assert name == own
    assert problem is not None
    assert "gpu.nvidia.com (dra.driver), for claim team/trainer" in problem.message
    assert "`kubectl drain` the node" in problem.remedy
    assert "dra.driver: gpu.nodeagent.io" in problem.remedy
    records.write_record(folder, record(mig_device(result=mig_result(driver=nvidias))))
    assert records.driver_in_force(nvidias, records.read_records(folder)) == (nvidias, None)
    assert records.driver_in_force(own, records.read_records(folder))[0] == nvidias
