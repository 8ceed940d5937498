"""Control client and fleet against whatever nvidia-cuda-mps-control is on PATH."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.control.client import ControlClient, DaemonDead, DaemonSilent
from nodeagent.mps.control.commands import (
    Command,
    UnknownServer,
    get_memory_limit,
    get_server_list,
    get_threads,
    quit_daemon,
    set_memory_limit,
    set_threads,
    terminate_client,
    threads_agree,
)
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import DaemonProcess
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL, SERVER, mps_process
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from tests.machine_load import stretched
from tests.mps.fleet_rig import GPU, US, FleetRig, ready, status, until, wanted
from tests.simulation.mps.rig import gone

# --- real daemon ----------------------------------------------------------------------------------


PROGRAM = shutil.which(CONTROL)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no {CONTROL} on PATH")


@asynccontextmanager
async def daemon(spec: DaemonSpec) -> AsyncIterator[tuple[DaemonProcess, ControlClient]]:
    """A running one, and a way to ask it; killed in the end."""
    program = str(PROGRAM)
    path = os.environ["PATH"]
    client = ControlClient(
        Programs(control=(program,), path=path),
        pipe_directory=spec.pipe_directory,
        log_directory=spec.log_directory,
        deadline=30.0,
        jitter=random.Random(1).random,
    )
    process = await ChildLauncher(Programs(control=(program,), path=path)).launch(spec)
    try:
        async with asyncio.timeout(stretched(30)):
            while True:  # until it listens
                try:
                    await client.ask(get_server_list())
                    break
                except DaemonDead:
                    await asyncio.sleep(0.01)
        yield process, client
    finally:
        process.kill()
        await process.wait()


async def test_limits_are_set_and_read_back(spec: DaemonSpec) -> None:
    """Exactly below 1G, cut down from there on, and gone with the daemon."""
    async with daemon(spec) as (_, client):
        assert await client.ask(get_memory_limit()) is None
        assert await client.ask(get_threads()) == 100.0
        for mebibytes in (1, 512, 1023, 1024, 1500, 5000, 40960, 81559):
            await client.ask(set_memory_limit(mebibytes))
            printed = await client.ask(get_memory_limit())
            assert printed is not None
            assert printed.agrees_with(mebibytes), (printed, mebibytes)
        for percentage in (0.1, 0.5, 12.35, 25, 33.33, 66.66, 99.99, 100):
            printed_threads = await client.ask(set_threads(percentage))
            assert printed_threads is not None
            assert threads_agree(printed_threads, percentage), (printed_threads, percentage)
            assert await client.ask(get_threads()) == printed_threads


async def test_a_hundred_callers(spec: DaemonSpec) -> None:
    """None lost, none wrong, in order."""
    async with daemon(spec) as (_, client):
        replies = await asyncio.gather(*(client.ask(set_threads(n)) for n in range(1, 101)))
        assert replies == [float(n) for n in range(1, 101)]
        assert await client.ask(get_threads()) == 100.0


async def test_beside_other_front_ends(spec: DaemonSpec) -> None:
    """Others take the only connection again and again; each question still gets its reply."""
    async with daemon(spec) as (_, client):
        others = [
            ControlClient(
                Programs(control=(str(PROGRAM),), path=os.environ["PATH"]),
                pipe_directory=spec.pipe_directory,
                log_directory=spec.log_directory,
                deadline=30.0,
                jitter=random.Random(seed).random,
            )
            for seed in range(8)
        ]
        replies = await asyncio.gather(
            *(one.ask_each(get_threads(), get_server_list()) for one in (client, *others))
        )
        assert replies == [(100.0, ())] * 9


async def test_what_there_is_not(spec: DaemonSpec) -> None:
    """A missing server and a missing client are each reported in their way."""
    async with daemon(spec) as (_, client):
        with pytest.raises(UnknownServer):
            await client.ask(get_threads(4_000_000))
        with pytest.raises(UnknownServer):
            await client.ask(terminate_client(4_000_000, 4_000_001), deadline=30)


async def test_a_stopped_daemon_is_silent_a_killed_one_dead(spec: DaemonSpec) -> None:
    """The one is detected by the deadline, the other at once, though its files are still there."""
    async with daemon(spec) as (process, client):
        assert mps_process(process.pid) == process.identity
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(DaemonSilent):
            await client.ask(get_server_list(), deadline=0.4)
        process.kill()
        assert await process.wait() == "signal 9 (SIGKILL)"
        with pytest.raises(DaemonDead):
            await client.ask(get_server_list())


async def test_quit(spec: DaemonSpec) -> None:
    """Its process ends, and a dead one is known for that."""
    async with daemon(spec) as (process, client):
        await client.ask(quit_daemon(2), deadline=30)
        async with asyncio.timeout(stretched(30)):
            assert (await process.wait()).startswith("status")
        with pytest.raises(DaemonDead):
            await client.ask(quit_daemon(2), deadline=30)


# --- real fleet -----------------------------------------------------------------------------------


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FleetRig]:
    """The real daemon with a stub for its server."""
    assert PROGRAM is not None
    with FleetRig(programs=Path(PROGRAM).parent) as made:
        stub = made.folder / "stub"
        stub.mkdir()
        server = stub / SERVER
        server.write_text("#!/bin/sh\nsleep 60\n")  # the shell stays, and has the name
        server.chmod(0o755)
        made.programs = type(made.programs)(
            control=made.programs.control, path=f"{stub}:{made.programs.path}"
        )
        yield made


START_SERVER = Command(f"start_server -uid {US}", tuple)


def reachable(path: Path) -> bool:
    """Whether a CUDA program could connect there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


async def limits(fleet: Fleet) -> tuple[str, float]:
    """What is really in force."""
    [daemon] = fleet.running()
    memory, threads = await daemon.control.ask_each(get_memory_limit(), get_threads())
    return str(memory), threads


async def test_start_change_and_stop(rig: FleetRig) -> None:
    """Limits are in force, as the plan's user; nothing is left in the end."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(1500, 33.33))
        assert await limits(fleet) == ("1G", 33.3)
        pid = status(fleet).pid
        await fleet.start(GPU, wanted(512, 100.0))
        assert (await limits(fleet), status(fleet).pid) == (("512M", 100.0), pid)
        [daemon] = rig.processes(CONTROL)
        assert daemon.uid == US
        await fleet.stop(GPU)
    assert (rig.processes(), list((rig.run_dir / "mps").iterdir())) == ([], [])


async def test_killed_and_stopped_by_a_signal(rig: FleetRig) -> None:
    """Back with its limits, after the one as after the other; the orphan is ended."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        for number in (signal.SIGKILL, signal.SIGSTOP):
            [running] = fleet.running()
            await running.control.ask(START_SERVER)
            await until(lambda: len(rig.servers()) == 1)
            [orphan] = rig.servers()
            pid = status(fleet).pid
            assert pid is not None
            os.kill(pid, number)
            await _replaced(fleet, pid)
            assert gone(orphan)
            assert await limits(fleet) == ("4G", 50.0)


async def _replaced(fleet: Fleet, pid: int) -> None:
    await until(lambda: status(fleet).pid != pid, 8.0)
    await ready(fleet)


async def test_adopted(rig: FleetRig) -> None:
    """The same process for ten agents."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        pid = status(fleet).pid
    for _ in range(10):
        async with rig.fleet() as fleet:
            assert (await ready(fleet)).pid == pid
            assert await limits(fleet) == ("4G", 50.0)
            assert rig.pipes().stat().st_uid == os.geteuid()  # sealed


async def test_drained_through_the_back_door(rig: FleetRig) -> None:
    """No client can connect while it drains, but we can ask; given up, all is as it was."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        [running] = fleet.running()
        await running.control.ask(START_SERVER)
        await until(lambda: status(fleet).server is not None)
        pid = status(fleet).pid
        assert reachable(rig.pipes() / "control")
        draining = asyncio.create_task(fleet.drain(GPU, seconds=2.0))
        await until(lambda: rig.back().exists() and (rig.back() / "control").exists())
        assert not reachable(rig.pipes() / "control")
        assert len(await running.control.ask(get_server_list())) == 1
        with pytest.raises(StillInUse, match="not known"):  # so it was not ended
            await draining
        assert ((await ready(fleet)).pid, reachable(rig.pipes() / "control")) == (pid, True)
        assert rig.said(Subject.STILL_IN_USE)
        assert await limits(fleet) == ("4G", 50.0)


async def test_stop_with_a_server_that_reports_nothing(rig: FleetRig) -> None:
    """Not known is in use; a drain by force ends it all the same."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        [running] = fleet.running()
        await running.control.ask(START_SERVER)
        await until(lambda: status(fleet).server is not None)
        with pytest.raises(StillInUse, match="not known"):
            await fleet.stop(GPU)
        await ready(fleet)
        assert await fleet.drain(GPU, seconds=0.1, force=True) == ()
        assert rig.processes() == []
