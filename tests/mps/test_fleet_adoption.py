import asyncio
import os
import shutil
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socket

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.adoption import survey
from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.files.directories import make_directories, spec_in
from nodeagent.mps.files.records import Record, read_records, write_record
from nodeagent.mps.files.sockets import SOCKETS
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL, SERVER, MpsProcess
from nodeagent.mps.requests import NotReady
from nodeagent.structs import replace
from tests.machine_load import until
from tests.mps.conftest import as_root, may_mount
from tests.mps.fleet_rig import GPU, OTHER_GPU, FleetRig, called_like, limits, ready, status, wanted
from tests.simulation.mps.rig import gone


async def test_an_agent_that_died_before_it_wrote_down_which(rig: FleetRig) -> None:
    pid = await rig.left_daemon()
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    write_record(rig.run_dir, replace(record, process=None, runs=None))
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid


async def test_a_plan_that_changed_while_no_agent_was_there(rig: FleetRig) -> None:
    pid = await rig.left_daemon(wanted(4096))
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    write_record(rig.run_dir, replace(record, wanted=wanted(2048)))
    async with rig.adopted(pid) as fleet:
        [daemon] = fleet.running()
        assert isinstance(daemon, RunningDaemon)
        assert (daemon.spec.limits.memory, daemon.wanted) == ((2048,), wanted(2048))


async def test_sockets_that_were_hidden_come_back(rig: FleetRig) -> None:
    """An agent that died in the middle of a drain leaves a daemon that no client finds."""
    pid = await rig.left_daemon()
    rig.back().mkdir()
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).rename(rig.back() / name)
    async with rig.adopted(pid):
        assert list(rig.back().iterdir()) == []
        with rig.served():
            pass


@as_root
async def test_who_waits_is_known_to_the_next_agent(rig: FleetRig) -> None:
    await rig.left_daemon()
    with rig.served(), rig.client(uid=1234) as stranger:
        assert await asyncio.to_thread(stranger.wait_until_connected)
        await until(lambda: f"NEW CLIENT {stranger.pid}" in rig.log().read_text())
        async with rig.fleet():
            assert f"pid {stranger.pid}" in await rig.reported(ReportSubject.FOREIGN_USER_WAITING)


async def test_an_agent_that_leaves_while_it_starts_one(rig: FleetRig) -> None:
    for delay in (0.0, 0.02, 0.06):
        async with rig.fleet() as fleet:
            starting = asyncio.create_task(fleet.start(GPU, wanted()))
            await asyncio.sleep(delay)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        async with rig.started() as fleet:
            assert [one.pid for one in rig.processes(CONTROL)] == [status(fleet).pid]
            await fleet.stop(GPU)


@may_mount
async def test_a_daemon_with_another_shm(rig: FleetRig) -> None:
    """The setting was changed, or the agent moved into a pod: what clients are given is another
    /dev/shm than the daemon's, so it is replaced once its own clients are gone.
    """
    shm = rig.pipes().with_name("shm")
    pid = await rig.left_daemon()
    with rig.served() as client:
        async with rig.fleet(private_shm=True) as fleet:
            assert (status(fleet).state, status(fleet).pid) == ("Draining", pid)
            assert status(fleet).why == "it has another /dev/shm than mps.shm says"
            client.allocate(1 << 20)
    async with rig.fleet(private_shm=True) as fleet:
        await until(lambda: status(fleet).pid not in {pid, None} and status(fleet).is_ready)
        other = status(fleet).pid
        assert shm.samefile(f"/proc/{other}/root/dev/shm")
    async with rig.fleet(private_shm=True) as fleet:
        assert (await ready(fleet)).pid == other


async def test_servers_are_recorded(rig: FleetRig) -> None:
    """While one exits it has no name any more, and the next agent would not find it."""
    async with rig.started() as fleet:
        with rig.served():  # the first decides whose server it is
            [server] = rig.processes(SERVER)

            def left() -> tuple[MpsProcess, ...]:
                [record] = read_records(rig.run_dir)
                assert isinstance(record, Record)
                return record.left

            await until(lambda: left() == (server,))
        async with rig.fleet() as other:
            assert (await ready(other)).pid == status(fleet).pid
            assert left() == (server,)
        await fleet.restart(GPU)
        assert left() == ()


async def test_clients_may_have_a_daemon_that_comes_back(rig: FleetRig) -> None:
    """One that was Ready stays published until it is back, by another agent too; no other does."""
    async with rig.fleet() as fleet:
        rig.knobs().turn("start_error", "no")
        with pytest.raises(NotReady):
            await fleet.start(GPU, wanted())
        assert fleet.running() == ()
        rig.knobs().clear()
        await fleet.restart(GPU)
        pid = status(fleet).pid
        assert pid is not None
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    rig.knobs().turn("start_error", "no")
    async with rig.fleet() as fleet:
        await rig.reported(ReportSubject.FAILED)
        assert [daemon.wanted for daemon in fleet.running()] == [wanted()]


async def test_a_daemon_that_came_late(rig: FleetRig) -> None:
    """An agent was killed while systemd was to start it, and it was not there yet when the next one
    looked: no other can be started beside it, so it is taken over, with its client.
    """
    async with rig.fleet() as fleet:
        plan = wanted(2048)
        account = plan.account
        make_directories(rig.run_dir, GPU, uid=account.uid, gid=account.gid)
        spec = spec_in(rig.run_dir, GPU, wanted())
        late = await ChildLauncher(rig.programs).launch(spec)
        await until((rig.pipes() / "control").exists)
        with rig.served() as client:
            await fleet.start(GPU, plan)
            assert (status(fleet).pid, await limits(fleet)) == (late.pid, ("2G", 50.0))
            with pytest.raises(StillInUse):
                await fleet.stop(GPU)
            client.allocate(1 << 20)
        late.close()


# --- records that cannot be used ------------------------------------------------------------------


async def _spoilt(rig: FleetRig) -> int:
    """The pid of a daemon that was Ready, whose record cannot be used."""
    pid = await rig.left_daemon()
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
        async with rig.adopted(pid) as fleet:
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
