"""A daemon that ended or failed is started again, and when."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.files.directories import make_directories, spec_in
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.requests import NotReady
from nodeagent.processes import ProcessIdentity, age, identify
from tests.mps.fleet_rig import (
    GPU,
    OTHER_GPU,
    FleetRig,
    limits,
    quick,
    ready,
    status,
    until,
    wanted,
)
from tests.simulation.mps.rig import gone


async def test_a_steady_daemon_is_back_at_once_and_then_waits(rig: FleetRig) -> None:
    """Its first end costs no delay, a quick one after it does; other devices' daemons notice
    nothing, and no task or descriptor is left.
    """
    before = _open_files()
    async with rig.fleet(quick(first_delay=600.0, longest_delay=600.0, steady=1.0)) as fleet:
        await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
        other = status(fleet, OTHER_GPU)
        first = status(fleet).pid
        assert first is not None
        await until(lambda: age(_identity(first)) > 1.0)
        os.kill(first, 9)
        await until(lambda: status(fleet).pid not in {None, first})
        await ready(fleet)  # so the delay of 600 s was not waited for

        def waits() -> bool:
            """Until then it is killed whenever it runs: at some time before it is steady."""
            pid = status(fleet).pid
            with suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, 9)
            return status(fleet).state == "Backoff"

        await until(waits)
        assert status(fleet, OTHER_GPU) == other
        assert gone(first)
    assert _open_files() == before


async def test_one_that_failed_is_tried_on(rig: FleetRig) -> None:
    """Once its cause has passed, it becomes Ready by itself."""
    rig.knobs().turn("start_error", "Cannot do it today")
    async with rig.fleet(quick(longest_delay=0.1)) as fleet:
        with pytest.raises(NotReady, match="Cannot do it today"):
            await fleet.start(GPU, wanted())
        assert "is tried every 0.1 s only" in await rig.reported(Subject.FAILED)
        rig.knobs().clear()
        await ready(fleet)
        assert len(rig.said(Subject.FAILED)) == 1


async def test_a_front_end_that_was_left_open(rig: FleetRig) -> None:
    """It has the daemon's name and pipe directory, but is none: a dead daemon comes back."""
    rig.impatient = True
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        front_end = await asyncio.create_subprocess_exec(
            rig.programs.control[0],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": rig.programs.path, "CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
        )
        try:
            pid = status(fleet).pid
            assert pid is not None
            await rig.reported(Subject.SILENT)  # it holds the only connection
            os.kill(pid, 9)
            await until(lambda: status(fleet).pid not in {None, pid})
            assert (await ready(fleet)).pid != pid
            assert front_end.returncode is None
        finally:
            if front_end.returncode is None:
                front_end.kill()
            await front_end.wait()


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
        await rig.reported(Subject.FAILED)
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
        with rig.client() as client:
            await asyncio.to_thread(client.wait_until_accepted)
            await fleet.start(GPU, plan)
            assert (status(fleet).pid, await limits(fleet)) == (late.pid, ("2G", 50.0))
            with pytest.raises(StillInUse):
                await fleet.stop(GPU)
            client.allocate(1 << 20)
        late.close()


def _identity(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert isinstance(found, ProcessIdentity)
    return found


def _open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
