import asyncio
from contextlib import suppress

import pytest

from nodeagent.errors import NodeagentError, StillInUse, UnknownDevice
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL
from nodeagent.mps.requests import NotReady
from nodeagent.simulation.mps.clients import ClientError, SimulatedClient
from tests.machine_load import stretched
from tests.mps.fleet_rig import (
    GPU,
    IS_ROOT,
    OTHER_GPU,
    US,
    FleetRig,
    called_like,
    quick,
    ready,
    status,
    until,
    wanted,
)

# --- drain ----------------------------------------------------------------------------------------


async def test_drain(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    draining = asyncio.create_task(fleet.drain(GPU, seconds=60.0))
    await until(
        lambda: status(fleet).state == "Draining" and not (rig.pipes() / "control").exists()
    )
    with rig.client() as late:
        assert late.wait_until_connected() is False
    client.allocate(1 << 20)
    await asyncio.sleep(0.2)
    assert not draining.done()
    client.close()
    assert await draining == ()
    assert (status(fleet).state, status(fleet).why) == ("Down", "drained on request")
    assert rig.processes() == []
    await asyncio.sleep(0.2)
    assert status(fleet).state == "Down"
    fleet.retry()
    await ready(fleet)


async def test_drain_out_of_time(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await until(lambda: bool(status(fleet).clients))
    before = status(fleet).pid
    assert await fleet.drain(GPU, seconds=0.4) == (client.pid,)
    assert (await ready(fleet)).pid == before
    with rig.served():
        pass
    assert rig.said(ReportSubject.STILL_IN_USE)


async def test_drain_by_force(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    await until(lambda: bool(status(fleet).clients))
    assert await fleet.drain(GPU, seconds=0.2, force=True) == ()
    with pytest.raises(ClientError) as caught:
        client.next_answer()
    assert caught.value.code == 810  # reported by its server, which was still there
    assert rig.processes() == []


async def test_drain_is_given_up(rig: FleetRig, fleet: Fleet, client: SimulatedClient) -> None:
    draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
    await until(lambda: status(fleet).state == "Draining")
    draining.cancel()
    with suppress(asyncio.CancelledError):
        await draining
    await ready(fleet)
    assert (rig.pipes() / "control").exists()


async def test_a_plan_does_not_wait_for_a_drain_without_end(rig: FleetRig) -> None:
    async with rig.fleet(quick(answer_deadline=1.0)) as fleet:
        await fleet.start(GPU, wanted())
        with rig.served():
            draining = asyncio.create_task(fleet.drain(GPU, seconds=None))
            await until(lambda: status(fleet).state == "Draining")
            for act in (fleet.start(GPU, wanted(2048)), fleet.stop(GPU)):
                async with asyncio.timeout(stretched(30)):
                    with pytest.raises(NotReady, match="is being drained or restarted on request"):
                        await act
            assert status(fleet).state == "Draining"
            assert not draining.done()
            while fleet.statuses():  # the deadline of an answer is short here, an end takes time
                await fleet.keep_only(())
            assert await draining == ()
            assert rig.processes() == []


async def test_drained_is_not_said_beside_another_daemon(rig: FleetRig, fleet: Fleet) -> None:
    with called_like(CONTROL, rig.pipes(), "-f", uid=US if IS_ROOT else None) as other:
        with pytest.raises(NodeagentError, match=rf"another MPS daemon \(pid {other}, "):
            await fleet.drain(GPU, seconds=30.0)
        assert status(fleet).state == "Down"
    assert await fleet.drain(GPU, seconds=30.0) == ()


async def test_drained_stays_down_for_the_next_agents(rig: FleetRig) -> None:
    """Although it could not be recorded at once, as in a full /run: that is reported once, and it
    is recorded as soon as it can be. A restart brings it back.
    """
    async with rig.fleet() as fleet:
        await fleet.start(GPU, wanted())
        record = rig.pipes().with_name("record.json")
        record.unlink()
        record.mkdir()
        assert await fleet.drain(GPU, seconds=30.0) == ()
        await asyncio.sleep(1.5)  # it is tried again meanwhile
        assert len(rig.said(ReportSubject.START_FAILED)) == 1
        record.rmdir()
        await until(record.is_file)
    for _ in range(2):
        async with rig.fleet() as fleet:
            assert (status(fleet).state, status(fleet).why) == ("Down", "drained on request")
    async with rig.fleet() as fleet:
        await fleet.restart(GPU)
        assert status(fleet).is_ready


async def test_a_drain_that_cannot_keep_new_clients_out(rig: FleetRig, fleet: Fleet) -> None:
    before = status(fleet).pid
    rig.back().write_text("in the way")
    with pytest.raises(StillInUse, match="not known: its sockets cannot be moved"):
        await fleet.drain(GPU, seconds=1.0)
    assert (await ready(fleet)).pid == before
    words = [
        said for said in rig.said(ReportSubject.STILL_IN_USE) if "sockets cannot be moved" in said
    ]
    assert len(words) == 1
    with rig.served():
        pass


# --- restart --------------------------------------------------------------------------------------


async def test_restart_of_a_daemon_whose_device_goes(rig: FleetRig) -> None:
    async with rig.fleet(quick(answer_deadline=1.0)) as fleet:
        await fleet.start(GPU, wanted())
        restarting = asyncio.create_task(fleet.restart(GPU))
        await until(lambda: status(fleet).state == "Draining")
        async with asyncio.timeout(stretched(30)):
            while fleet.statuses():
                await fleet.keep_only(())
            with pytest.raises(NotReady, match="Down: drained on request"):
                await restarting
        assert rig.processes() == []


async def test_requests_for_unknown_devices(rig: FleetRig, fleet: Fleet) -> None:
    with pytest.raises(UnknownDevice, match=GPU):
        await fleet.restart(OTHER_GPU)
    with pytest.raises(UnknownDevice, match="no MPS daemon"):
        await fleet.drain("GPU-x", seconds=None)
