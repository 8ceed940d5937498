"""A daemon that dies, hangs or does not start under a fleet: what is reported, how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import SERVER
from nodeagent.mps.requests import NotReady
from nodeagent.structs import replace
from tests.mps.conftest import as_root
from tests.mps.fleet_faults.rig import prepared, served
from tests.mps.fleet_rig import (
    GPU,
    FleetRig,
    limits,
    quick,
    ready,
    status,
    until,
    wanted,
)
from tests.simulation.mps.rig import gone

STEADY = 60.0


async def test_die(rig: FleetRig, fleet: Fleet) -> None:
    """Its end is reported with its signal; it is back with its limits, and its orphan is ended."""
    with served(rig):
        [orphan] = rig.servers()
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("die")
        assert "signal 9 (SIGKILL)" in await rig.reported(Subject.EXITED)
        await ready(fleet)
        assert gone(orphan)
    assert (await limits(fleet), status(fleet).restarts) == (("4G", 50.0), 1)


async def test_die_after(rig: FleetRig) -> None:
    """One that never lives long is given up, and started again on request."""
    prepared(rig, "die_after", 0.4)
    async with rig.fleet(quick(steady=STEADY)) as fleet:
        with suppress(NotReady):  # on a busy machine it dies before it is Ready
            await fleet.start(GPU, wanted())
        words = await rig.reported(Subject.FAILED)
        assert "failed 3 times in a row" in words
        assert status(fleet).state == "Failed"
        assert status(fleet).last_lines
        rig.knobs().clear()
        await fleet.restart(GPU)
        assert status(fleet).is_ready


async def test_hang(rig: FleetRig, fleet: Fleet) -> None:
    """Found by its silence, and replaced."""
    before = status(fleet).pid
    rig.knobs().turn("hang")
    assert "answered none of 2 questions in a row; it is replaced" in await rig.reported(
        Subject.SILENT
    )
    rig.knobs().clear()
    assert (await ready(fleet)).pid != before


@as_root
async def test_hang_while_it_is_drained(rig: FleetRig) -> None:
    """Without a server it has no client; another user's process of that name is no server of it."""
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(uid=1234))
        like = await asyncio.create_subprocess_exec(
            *(SERVER, "-f"),
            executable="/bin/sh",
            stdin=asyncio.subprocess.PIPE,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(rig.pipes())},
            user=4242,
            extra_groups=(),
        )
        try:
            rig.knobs().turn("hang")
            assert await fleet.drain(GPU, seconds=30.0) == ()
            assert like.returncode is None
        finally:
            like.kill()
            await like.wait()


async def test_stopped_by_a_signal(rig: FleetRig, fleet: Fleet) -> None:
    """SIGSTOP is no other than a hang; nothing of it is left."""
    before = status(fleet).pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    await rig.reported(Subject.SILENT)
    assert (await ready(fleet)).pid != before
    assert gone(before)


async def test_deaf(rig: FleetRig, fleet: Fleet) -> None:
    """One that ignores signals and hangs ends all the same."""
    before = status(fleet).pid
    rig.knobs().turn("deaf")
    rig.knobs().turn("hang")
    await rig.reported(Subject.SILENT)
    rig.knobs().clear()
    assert (await ready(fleet)).pid != before


@pytest.mark.parametrize("how", ["error", "empty"])
async def test_busy(rig: FleetRig, fleet: Fleet, how: str) -> None:
    """A front-end left open is reported once, with what to do, and ends no daemon."""
    before = status(fleet).pid
    rig.knobs().turn("busy", how)
    words = await rig.reported(Subject.SILENT)
    assert "another front-end held the MPS daemon" in words
    assert "end the nvidia-cuda-mps-control that is still open" in words
    with pytest.raises(StillInUse, match="not known: another front-end held the MPS daemon"):
        await fleet.stop(GPU)
    assert len(rig.said(Subject.SILENT)) == 1
    assert status(fleet).trouble == words
    rig.knobs().clear()
    await until(lambda: not status(fleet).trouble)
    assert (await ready(fleet)).pid == before


async def test_busy_from_the_start(rig: FleetRig) -> None:
    """It is not Ready, says why, and is not killed over and over."""
    prepared(rig, "busy", "error")
    async with rig.fleet(quick(start_deadline=2.0)) as fleet:
        starting = asyncio.create_task(fleet.start(GPU, wanted()))
        await rig.reported(Subject.SILENT)
        await asyncio.sleep(2.0)
        assert "another front-end held" in status(fleet).why
        rig.knobs().clear()
        await starting
        assert (status(fleet).restarts, rig.said(Subject.EXITED)) == (0, [])


async def test_start_error(rig: FleetRig) -> None:
    """What the program said is in the error, and in the report when it is given up."""
    prepared(rig, "start_error", "Cannot do it today")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="Cannot do it today") as caught:
            await fleet.start(GPU, wanted())
        assert "Backoff" in str(caught.value)
        assert "status 1" in await rig.reported(Subject.FAILED)
        assert "Cannot do it today" in rig.lines(Subject.FAILED)
        assert "Cannot do it today" in " ".join(status(fleet).last_lines)


async def test_slow_start(rig: FleetRig) -> None:
    """Slower than the deadline it is replaced, and that is reported; in time it is not."""
    prepared(rig, "slow_start", 0.6)
    async with rig.fleet(quick(start_deadline=0.4)) as fleet:
        with pytest.raises(NotReady, match=r"Backoff|Failed"):
            await fleet.start(GPU, wanted())
        assert "did not answer within 0.4 s of its start" in await rig.reported(Subject.SILENT)
    async with rig.fleet() as fleet:
        await ready(fleet)


async def test_slow_sockets(rig: FleetRig) -> None:
    """They are kept from new clients when they are made, and not taken from it before."""
    prepared(rig, "slow_sockets", 0.03)
    async with rig.fleet() as fleet:
        fleet.close_to_clients({GPU: "sick"})
        await fleet.start(GPU, wanted())
        assert status(fleet).restarts == 0
        assert not (rig.pipes() / "control").exists()


async def test_forget_limits(rig: FleetRig, fleet: Fleet) -> None:
    """Drift is reported with both values, and mended without another process."""
    before = status(fleet).pid
    rig.knobs().turn("forget_limits")
    words = await rig.reported(Subject.LIMITS_DIFFER)
    assert "memory limit is not set, wanted 4096M" in words
    assert "thread percentage is 100.0, wanted 50" in words
    assert (await ready(fleet)).pid == before
    assert await limits(fleet) == ("4G", 50.0)


async def test_ignore_settings(rig: FleetRig) -> None:
    """A daemon that only says that it took them is never Ready."""
    prepared(rig, "ignore_settings")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match=r"thread percentage is 100\.0, wanted 50"):
            await fleet.start(GPU, wanted())
        assert "wanted 4096M" in await rig.reported(Subject.LIMITS_DIFFER)
        await rig.reported(Subject.FAILED)
        assert rig.said(Subject.READY) == []


@as_root
async def test_a_fault_of_our_own(rig: FleetRig) -> None:
    """An unforeseen error is reported as any failed start is, and the start is tried again."""
    rig.programs = replace(rig.programs, path="/usr/bin\0")
    async with rig.fleet() as fleet:
        with pytest.raises(NotReady, match="a fault in the agent itself: ValueError: embedded nul"):
            await fleet.start(GPU, wanted())
        await until(lambda: status(fleet).state == "Failed")
        await fleet.stop(GPU)
