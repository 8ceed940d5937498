"""Agents die and others come: daemons and clients go on, whatever moment it was."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.files.records import Record, read_records, write_record
from nodeagent.mps.launch.child import can_mount_own_shm
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL, SERVER, MpsProcess
from nodeagent.structs import replace
from tests.mps.conftest import as_root
from tests.mps.fleet_rig import GPU, IS_ROOT, US, FleetRig, ready, status, until, wanted
from tests.simulation.mps.rig import gone

MANY = pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=pytest.mark.full)])


async def agent(rig: FleetRig) -> tuple[asyncio.subprocess.Process, int]:
    """A process with a fleet, and the pid of its daemon."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.mps.agent_process",
        str(rig.run_dir),
        rig.programs.control[0],
        rig.programs.path,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    said = await process.stdout.readline()
    return process, int(json.loads(said)["pid"])


@MANY
async def test_agents_killed(rig: FleetRig, rounds: int) -> None:
    """With -9, at once after Ready: the daemon stays the same, and its client works on."""
    first, pid = await agent(rig)
    with rig.client() as client:
        await asyncio.to_thread(client.wait_until_accepted)
        for _ in range(rounds):
            first.kill()
            await first.wait()
            client.allocate(1 << 20)
            first, found = await agent(rig)
            assert found == pid
        first.kill()
        await first.wait()
        client.allocate(1 << 20)
    assert [one.pid for one in rig.processes(CONTROL)] == [pid]


@MANY
async def test_agents_closed(rig: FleetRig, rounds: int) -> None:
    """In the orderly way, as by SIGTERM; clients and servers are known to the next at once."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    with rig.client() as client:
        await asyncio.to_thread(client.wait_until_accepted)
        for _ in range(rounds):
            async with rig.fleet() as fleet:
                daemon = fleet.daemon_of(GPU)
                assert daemon is not None
                assert (daemon.pid, [u.pid for u in daemon.clients.processes]) == (
                    pid,
                    [client.pid],
                )
                await ready(fleet)
            client.allocate(1 << 10)
    assert [one.pid for one in rig.processes(CONTROL)] == [pid]
    assert rig.said(Subject.EXITED) == []


async def test_a_daemon_that_died_without_an_agent(rig: FleetRig) -> None:
    """Its record says that it is wanted: the orphan is ended, and another daemon started."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
        assert pid is not None
        with rig.client() as client:
            await asyncio.to_thread(client.wait_until_accepted)
    [orphan] = rig.servers()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    async with rig.fleet() as fleet:
        state = await ready(fleet)
        assert state.pid != pid
        assert gone(orphan)


async def test_an_agent_that_died_before_it_wrote_down_which(rig: FleetRig) -> None:
    """The one daemon of that directory is it, if all the rest agrees."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    write_record(rig.run_dir, replace(record, process=None, runs=None))
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid


async def test_a_number_that_was_used_again(rig: FleetRig) -> None:
    """Another process with the noted pid is neither adopted nor touched."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        await fleet.drain(GPU, seconds=3.0)
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    sleeper = await asyncio.create_subprocess_exec("sleep", "60")
    noted = MpsProcess(sleeper.pid, 1, US, CONTROL, str(rig.pipes()))
    write_record(rig.run_dir, replace(record, process=noted, drained=False))
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid != sleeper.pid
    assert sleeper.returncode is None
    sleeper.kill()
    await sleeper.wait()


async def test_a_plan_that_changed_while_no_agent_was_there(rig: FleetRig) -> None:
    """What the process runs as and what is wanted are distinguished: limits are set on it."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(4096))
        pid = status(fleet).pid
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    write_record(rig.run_dir, replace(record, wanted=wanted(2048)))
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid
        [daemon] = fleet.running()
        assert isinstance(daemon, RunningDaemon)
        assert (daemon.spec.limits.memory, daemon.wanted) == (2048, wanted(2048))


@as_root
async def test_another_user_wanted_while_the_old_one_runs(rig: FleetRig) -> None:
    """The old daemon is known for what it is, drained and replaced."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    [record] = read_records(rig.run_dir)
    assert isinstance(record, Record)
    write_record(rig.run_dir, replace(record, wanted=wanted(uid=1234)))
    async with rig.fleet() as fleet:
        await until(lambda: status(fleet).pid not in {pid, None} and status(fleet).is_ready)
        [daemon] = rig.processes(CONTROL)
        assert daemon.uid == 1234


async def test_sockets_that_were_hidden_come_back(rig: FleetRig) -> None:
    """An agent that died in the middle of a drain leaves a daemon that no client finds."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    rig.back().mkdir()
    for name in ("control", "control_privileged"):
        (rig.pipes() / name).rename(rig.back() / name)
    async with rig.fleet() as fleet:
        assert (await ready(fleet)).pid == pid
        assert list(rig.back().iterdir()) == []
        with rig.client() as client:
            await asyncio.to_thread(client.wait_until_accepted)


@as_root
async def test_who_waits_is_known_to_the_next_agent(rig: FleetRig) -> None:
    """From the log that is there already."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
    with rig.client() as client:
        await asyncio.to_thread(client.wait_until_accepted)  # the first decides whose server it is
        with rig.client(uid=1234) as stranger:
            assert await asyncio.to_thread(stranger.wait_until_connected)
            await until(lambda: f"NEW CLIENT {stranger.pid}" in rig.log().read_text())
            async with rig.fleet():
                assert f"pid {stranger.pid}" in await rig.reported(Subject.FOREIGN_USER_WAITING)


async def test_an_agent_that_leaves_while_it_starts_one(rig: FleetRig) -> None:
    """However far that was, the next agent has exactly one daemon."""
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        async with rig.fleet() as fleet:
            starting = asyncio.create_task(fleet.start(GPU, wanted()))
            await asyncio.sleep(delay)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        async with rig.fleet() as fleet:
            await fleet.start(GPU, wanted())
            assert [one.pid for one in rig.processes(CONTROL)] == [status(fleet).pid]
            await fleet.stop(GPU)


@pytest.mark.skipif(not IS_ROOT or not can_mount_own_shm(), reason="needs root that may mount")
async def test_a_daemon_with_another_shm(rig: FleetRig) -> None:
    """The setting was changed, or the agent moved into a pod: what clients are given is another
    /dev/shm than the daemon's, so it is replaced once its own clients are gone.
    """
    shm = rig.pipes().with_name("shm")
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    with rig.client() as client:
        await asyncio.to_thread(client.wait_until_accepted)
        async with rig.fleet(private_shm=True) as fleet:
            assert (status(fleet).state, status(fleet).pid) == ("Draining", pid)
            assert status(fleet).why == "it has another /dev/shm than mps.shm says"
            client.allocate(1 << 20)
    async with rig.fleet(private_shm=True) as fleet:
        await until(lambda: status(fleet).pid not in {pid, None} and status(fleet).is_ready)
        pid = status(fleet).pid
        assert shm.samefile(f"/proc/{pid}/root/dev/shm")
    async with rig.fleet(private_shm=True) as fleet:
        assert (await ready(fleet)).pid == pid


async def test_servers_are_recorded(rig: FleetRig) -> None:
    """While one exits it has no name any more, and the next agent would not find it."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        with rig.client() as client:
            await asyncio.to_thread(client.wait_until_accepted)
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
