"""A daemon's server that fails, faults or does not end; and that each fault knob has its test."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.simulation.mps.knobs import KNOBS
from tests.mps.conftest import as_root
from tests.mps.fleet_faults.rig import prepared, served
from tests.mps.fleet_rig import GPU, FleetRig, ready, status, until, wanted
from tests.simulation.mps.rig import gone


async def test_server_slow(rig: FleetRig, fleet: Fleet) -> None:
    """Initializing too long is a fault until it is over."""
    rig.knobs().turn("server_slow", 4.0)
    with rig.client() as client:
        words = await rig.reported(Subject.SERVER_SLOW)
        assert "has been initializing for 1 s" in words
        assert status(fleet).state == "Fault"
        await ready(fleet)
        client.wait_until_accepted()


@pytest.mark.parametrize(
    ("knob", "value", "words", "line"),
    [("server_exit", 5, "status 5", "exited with status 5"),
     ("no_gpu", True, "status 1", "no CUDA-capable device")],
)  # fmt: skip
async def test_a_server_that_fails(
    rig: FleetRig, fleet: Fleet, *, knob: str, value: object, words: str, line: str
) -> None:
    """Its end and the reason are reported once for all its tries, though no query saw it alive."""
    rig.knobs().turn(knob, value)
    with rig.client():
        assert words in await rig.reported(Subject.SERVER_EXITED)
        assert line in rig.lines(Subject.SERVER_EXITED)
        await asyncio.sleep(0.7)
        assert len(rig.said(Subject.SERVER_EXITED)) == 1
    assert status(fleet).is_ready
    assert words in status(fleet).trouble
    rig.knobs().clear()
    with served(rig):
        await until(lambda: not status(fleet).trouble)


def test_the_knobs_of_failing_servers() -> None:
    """The two above."""
    assert {"server_exit", "no_gpu"} <= set(KNOBS)


@as_root
async def test_server_uid(rig: FleetRig) -> None:
    """A server of another user than the plan's is named with both."""
    prepared(rig, "server_uid", 1234)
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted(uid=0))
        with served(rig, uid=0):
            words = await rig.reported(Subject.WRONG_SERVER_USER)
            assert "runs as user 1234, the plan wants 0" in words


async def test_server_deaf(rig: FleetRig, fleet: Fleet) -> None:
    """An orphan that ignores SIGINT is killed, before the next daemon is started."""
    with served(rig):
        [orphan] = rig.servers()
        rig.knobs().turn("server_deaf")
        await asyncio.sleep(0.15)
        pid = status(fleet).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await rig.reported(Subject.EXITED)
        await ready(fleet)
        assert gone(orphan)


async def test_server_die(rig: FleetRig, fleet: Fleet) -> None:
    """The daemon calls it status 0; its clients know better."""
    with served(rig) as client:
        await until(lambda: bool(status(fleet).clients))
        os.kill(client.pid, signal.SIGSTOP)  # else it may be gone as fast as its server
        rig.knobs().turn("server_die")
        words = await rig.reported(Subject.SERVER_EXITED)
        assert f"its clients have lost it: pid {client.pid}" in words
        os.kill(client.pid, signal.SIGCONT)


async def test_server_busy(rig: FleetRig, fleet: Fleet) -> None:
    """Who its clients are is not known, so nothing is taken away from them."""
    with served(rig) as client:
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("server_busy")
        await until(lambda: _clients_unknown(fleet))
        with pytest.raises(StillInUse, match="not known: its MPS server is busy and does not"):
            await fleet.stop(GPU)
        with pytest.raises(StillInUse, match="not known"):
            await fleet.drain(GPU, seconds=0.3)
        rig.knobs().clear()
        await ready(fleet)
        client.allocate(1)


async def test_server_hang(rig: FleetRig, fleet: Fleet) -> None:
    """It does not leave when the daemon quits; both are ended in the end, and that is reported."""
    with served(rig):
        [server] = rig.servers()
        await until(lambda: bool(status(fleet).clients))
    await until(lambda: not status(fleet).clients)
    await asyncio.sleep(1.0)  # the driver lists it no more; the server has noticed, too
    rig.knobs().turn("server_hang")
    await fleet.stop(GPU)
    assert "did not end within 1.5 s of being asked to" in rig.said(Subject.SILENT)[-1]
    assert gone(server)
    assert rig.processes() == []


async def test_fault(rig: FleetRig, fleet: Fleet) -> None:
    """The culprit is named; when all its clients are gone it is Ready by itself."""
    with served(rig) as client, served(rig) as victim:
        await until(lambda: len(status(fleet).clients) == 2)
        client.fault()
        words = await rig.reported(Subject.SERVER_FAULT)
        assert f"had a fatal fault of client {client.pid}" in words
        assert status(fleet).state == "Fault"
        assert {c.pid for c in status(fleet).clients} == {client.pid, victim.pid}
        with pytest.raises(StillInUse, match=f"pid {victim.pid}"):
            await fleet.restart(GPU)
    await ready(fleet)


async def test_fault_held(rig: FleetRig, fleet: Fleet) -> None:
    """A fault without anybody who caused it, held and cleared; "fault" is the knob."""
    with served(rig):
        await until(lambda: bool(status(fleet).clients))
    rig.knobs().turn("fault", "hold")
    assert "had a fatal fault and takes no client" in await rig.reported(Subject.SERVER_FAULT)
    rig.knobs().clear("fault")
    await ready(fleet)


@pytest.mark.parametrize("code", [700, -1])
async def test_terminate_code(rig: FleetRig, fleet: Fleet, code: int) -> None:
    """A client that cannot be taken off the device does not hold up a drain by force."""
    with served(rig):
        await until(lambda: bool(status(fleet).clients))
        rig.knobs().turn("terminate_code", code)
        assert await fleet.drain(GPU, seconds=0.1, force=True) == ()
    assert status(fleet).state == "Down"
    assert rig.processes() == []


def test_every_knob_has_its_test() -> None:
    """In this folder, by name."""
    named = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [knob for knob in KNOBS if f'"{knob}"' not in named] == []


def _clients_unknown(fleet: Fleet) -> bool:
    daemon = fleet.daemon_of(GPU)
    return daemon is not None and not daemon.clients.known
