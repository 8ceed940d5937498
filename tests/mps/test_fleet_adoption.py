import asyncio
import os

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.files.directories import make_directories, spec_in
from nodeagent.mps.files.records import Record, read_records, write_record
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL, SERVER, MpsProcess
from nodeagent.mps.requests import NotReady
from nodeagent.structs import replace
from tests.mps.conftest import as_root, may_mount
from tests.mps.fleet_rig import GPU, FleetRig, limits, ready, status, until, wanted


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
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid
        [daemon] = fleet.running()
        assert isinstance(daemon, RunningDaemon)
        assert (daemon.spec.limits.memory, daemon.wanted) == (2048, wanted(2048))


async def test_sockets_that_were_hidden_come_back(rig: FleetRig) -> None:
    """An agent that died in the middle of a drain leaves a daemon that no client finds."""
    pid = await rig.left_daemon()
    rig.back().mkdir()
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).rename(rig.back() / name)
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid
        assert list(rig.back().iterdir()) == []
        with rig.served():
            pass


@as_root
async def test_who_waits_is_known_to_the_next_agent(rig: FleetRig) -> None:
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
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
        async with rig.fleet() as fleet:
            await fleet.start(GPU, wanted())
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
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
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
    """One that was Ready is published on while it is started anew, by another agent too; one that
    never was is not.
    """
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
