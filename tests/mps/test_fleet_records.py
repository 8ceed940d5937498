import json
import os
import shutil
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socket
from typing import Any

import pytest

from nodeagent.errors import StillInUse
from nodeagent.files.state import StateFormat, write_state
from nodeagent.mps.adoption import survey
from nodeagent.mps.files.directories import make_directories
from nodeagent.mps.files.records import Record, RecordUnusable, read_records, write_record
from nodeagent.mps.files.sockets import SOCKETS
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL, MpsProcess
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.mps.conftest import as_root
from tests.mps.fleet_rig import GPU, OTHER_GPU, FleetRig, called_like, ready, wanted
from tests.simulation.mps.rig import gone


async def _spoilt(rig: FleetRig, plan: WantedMps | None = None) -> int:
    """The pid of a daemon that was Ready, whose record cannot be used."""
    pid = await rig.left_daemon(plan)
    rig.pipes().with_name("record.json").write_text("{")
    return pid


@pytest.mark.parametrize("there", [True, False])
async def test_a_record_that_cannot_be_used(rig: FleetRig, there: bool) -> None:
    """Or that an agent set aside before it was killed. Beside a living daemon with a client: it is
    reported, and the daemon is adopted as it is, so that a plan that wants it keeps it, with its
    client.
    """
    pid = await _spoilt(rig)
    if not there:
        rig.pipes().with_name("record.json").unlink()
    with rig.served() as client:
        asked = (await survey(rig.run_dir, programs=rig.programs))[GPU]
        assert (asked.pid, [user.pid for user in asked.clients.processes]) == (pid, [client.pid])
        async with rig.fleet() as fleet:
            words = await rig.reported(ReportSubject.RECORD_UNUSABLE)
            assert f"the daemon there (pid {pid}) is taken over" in words
            assert ("the file is now" in words, "has no record" in words) == (there, not there)
            daemon = fleet.daemon_of(GPU)
            assert daemon is not None
            assert [user.pid for user in daemon.clients.processes] == [client.pid]
            assert fleet.running() == ()  # which shares it has is not known
            with pytest.raises(StillInUse, match=f"pid {client.pid}"):
                await fleet.stop(GPU)
            await fleet.start(GPU, wanted(2048))
            assert [one.clients for one in fleet.running()] == [daemon_clients(fleet)]
        async with rig.fleet() as fleet:
            assert (await ready(fleet)).pid == pid
            [running] = fleet.running()
            assert running.wanted == wanted(2048)
        client.allocate(1 << 20)


def daemon_clients(fleet: Fleet) -> tuple[tuple[int, int], ...]:
    return tuple(
        (server.pid, client.pid)
        for state in fleet.statuses()
        if (server := state.server) is not None
        for client in state.clients
    )


async def test_a_record_that_cannot_be_used_and_no_plan_for_it(rig: FleetRig) -> None:
    pid = await _spoilt(rig)
    async with rig.fleet() as fleet:
        await fleet.stop(GPU)
        assert gone(pid)
        assert fleet.statuses() == ()
        await fleet.start(GPU, wanted())
    assert len(rig.processes(CONTROL)) == 1


async def test_a_record_that_cannot_be_used_beside_a_dead_daemon(rig: FleetRig) -> None:
    pid = await _spoilt(rig)
    with rig.served():
        [orphan] = rig.servers()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        async with rig.fleet() as fleet:
            assert "no daemon runs there" in await rig.reported(ReportSubject.RECORD_UNUSABLE)
            assert gone(orphan)
            assert fleet.statuses() == ()
            await fleet.start(GPU, wanted())


@as_root
async def test_who_only_looks_like_the_daemon(rig: FleetRig) -> None:
    pid = await _spoilt(rig)
    with called_like(CONTROL, rig.pipes(), "-f", uid=4242) as like:
        async with rig.fleet() as fleet:
            assert f"(pid {pid})" in await rig.reported(ReportSubject.RECORD_UNUSABLE)
            assert (await ready(fleet)).pid == pid
        assert not gone(like)


@as_root
async def test_who_has_no_socket_is_no_daemon(rig: FleetRig) -> None:
    """The plan's user can name a process like that, and would keep the device without a daemon."""
    tenant = wanted(uid=1234)
    pid = await rig.left_daemon(tenant)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (rig.pipes().parent / "record.json").write_text("{")
    with called_like(CONTROL, rig.pipes(), "-f", uid=1234):
        assert await survey(rig.run_dir, programs=rig.programs) == {}


async def test_directories_without_a_record(rig: FleetRig) -> None:
    """What an agent left that was killed while it made or removed them goes; where a daemon runs
    they stay, and so does what is no device's.
    """
    account = wanted().account
    left = make_directories(rig.run_dir, OTHER_GPU, uid=account.uid, gid=account.gid)
    (rig.run_dir / "mps" / "notes").mkdir()
    async with rig.fleet() as fleet:
        assert not Path(left).parent.exists()
        await fleet.start(GPU, wanted())
    rig.pipes().with_name("record.json").unlink()
    async with rig.fleet():
        pass
    assert sorted(path.name for path in (rig.run_dir / "mps").iterdir()) == [GPU, "notes"]


async def test_a_daemon_whose_directory_was_deleted(rig: FleetRig) -> None:
    """No client finds it any more, and none could be started in its place: it is ended."""
    pid = await rig.left_daemon()
    shutil.rmtree(rig.pipes().parent)
    async with rig.fleet() as fleet:
        assert f"(pid {pid})" in await rig.reported(ReportSubject.RECORD_UNUSABLE)
        assert fleet.statuses() == ()
    assert gone(pid)


async def test_a_daemon_without_a_record_that_takes_no_connection(rig: FleetRig) -> None:
    """It cannot be proven to be the one there, and neither that it is not: its files stay."""
    pid = await rig.left_daemon()
    record = rig.pipes().with_name("record.json")
    kept = record.rename(rig.folder / "record.json")
    os.kill(pid, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            for name in SOCKETS:
                with suppress(BlockingIOError):
                    while True:
                        one = stack.enter_context(socket(AF_UNIX, SOCK_SEQPACKET))
                        one.setblocking(False)
                        one.connect(str(rig.pipes() / name))
            async with rig.fleet():
                assert f"(pid {pid}, " in await rig.reported(ReportSubject.CANNOT_BE_ENDED)
            assert (rig.pipes() / "control").is_socket()
    finally:
        os.kill(pid, signal.SIGCONT)
    kept.rename(record)
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid


# --- the file -------------------------------------------------------------------------------------


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
    path = changed(tmp_path, **changes)
    assert f"{path} cannot be used" in unusable(tmp_path)
