import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import StillInUse
from nodeagent.mps.commands import ControlCommand, get_memory_limit, get_server_list
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL
from nodeagent.plan.shares import Share, Sharing
from nodeagent.structs import replace
from tests.machine_load import until
from tests.mps.fleet_rig import GPU, OTHER_GPU, US, FleetRig, limits, ready, status, wanted
from tests.simulation.mps.rig import gone

PROGRAM = shutil.which(CONTROL)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no {CONTROL} on PATH")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FleetRig]:
    assert PROGRAM is not None
    with FleetRig(programs=Path(PROGRAM).parent) as made:
        made.have_servers_sleep()
        yield made


START_SERVER = ControlCommand(f"start_server -uid {US}", tuple)


def reachable(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


async def test_start_change_and_stop(rig: FleetRig) -> None:
    async with rig.started(wanted(1500, 33.33)) as fleet:
        assert await limits(fleet) == ("1G", 33.3)
        pid = status(fleet).pid
        await fleet.start(GPU, wanted(512, 100.0))
        assert (await limits(fleet), status(fleet).pid) == (("512M", 100.0), pid)
        [daemon] = rig.processes(CONTROL)
        assert daemon.uid == US
        await fleet.stop(GPU)
    assert (rig.processes(), list((rig.run_dir / "mps").iterdir())) == ([], [])


async def test_one_daemon_of_two_gpus(rig: FleetRig) -> None:
    """Whether it has the devices is not asked: ordinals are counted as it was told them."""
    share = Share("all", None, None, 50.0, by_device=((GPU, 1500, None), (OTHER_GPU, 700, None)))
    both = replace(wanted(), sharing=Sharing((share,), "report"), devices=(GPU, OTHER_GPU))
    pid = await rig.left_daemon(both)
    async with rig.adopted(pid) as fleet:
        [running] = fleet.running()
        asked = [get_memory_limit(ordinal=ordinal) for ordinal in range(3)]
        found = await running.control.ask_each(*asked)
        assert list(map(str, found)) == ["1G", "700M", "None"]
        await running.control.ask(START_SERVER)
        await until(lambda: len(rig.servers()) == 1)
        environ = Path(f"/proc/{rig.servers()[0]}/environ")
        environment = await asyncio.to_thread(environ.read_bytes)
        assert f"CUDA_VISIBLE_DEVICES={GPU},{OTHER_GPU}\0".encode() in environment


async def test_killed_and_stopped_by_a_signal(rig: FleetRig) -> None:
    rig.impatient = True
    async with rig.started() as fleet:
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
    pid = await rig.left_daemon()
    for _ in range(10):
        async with rig.adopted(pid) as fleet:
            assert await limits(fleet) == ("4G", 50.0)
            assert rig.pipes().stat().st_uid == os.geteuid()  # sealed


async def test_drained_through_the_back_door(rig: FleetRig) -> None:
    async with rig.started() as fleet:
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
        assert rig.said(ReportSubject.STILL_IN_USE)
        assert await limits(fleet) == ("4G", 50.0)


async def test_stop_with_a_server_that_reports_nothing(rig: FleetRig) -> None:
    async with rig.started() as fleet:
        [running] = fleet.running()
        await running.control.ask(START_SERVER)
        await until(lambda: status(fleet).server is not None)
        with pytest.raises(StillInUse, match="not known"):
            await fleet.stop(GPU)
        await ready(fleet)
        assert await fleet.drain(GPU, seconds=0.1, force=True) == ()
        assert rig.processes() == []
