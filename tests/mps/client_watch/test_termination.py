"""Only real offenders are ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.structs import replace
from tests.machine_load import stretched
from tests.mps.client_watch.rig import GIB, TERMINATE, Start, Watch, look, slot
from tests.mps.plans import GPU, memory_of
from tests.mps.simulated_daemon import asking, running, start
from tests.simulation.mps.rig import Rig, gone


async def test_over_the_count_and_ended(rig: Rig, start_client: Start) -> None:
    """The newest one, by the daemon; those who were there go on, and so does their server."""
    start(rig, TERMINATE)
    clients = [start_client(**slot(name)) for name in ("small-0", "small-1", "small-0")]
    server = rig.server()
    control = asking(rig)
    async with Watch() as watch:
        await look(watch, running(rig, TERMINATE, control))
        await watch.settle()
        states = await look(watch, running(rig, TERMINATE, control))
    assert clients[2].process.wait(stretched(30)) == 1
    assert [state.pid for state in states] == [clients[0].pid, clients[1].pid]
    assert all(state.findings == () for state in states)
    assert rig.server() == server
    clients[0].allocate(GIB)
    _, (_, first), (_, last) = watch.reported
    assert (first.kind, first.outcome) == ("count", "")
    assert (last.kind, last.client.pid) == ("count", clients[2].pid)
    assert last.outcome == "the daemon ended its work, and it ended by itself"


async def test_an_older_program_that_comes_later(rig: Rig, start_client: Start) -> None:
    """It displaces no client of the slot that it names, nor once the others were out of sight."""
    start(rig, TERMINATE)
    control = asking(rig)
    with SimulatedClient(rig.pipes, environment=slot("small-0")) as older:
        os.kill(older.pid, signal.SIGSTOP)  # before it has come to connect
        clients = [start_client(**slot(name)) for name in ("small-0", "small-1")]
        async with Watch() as watch:
            await look(watch, daemon := running(rig, TERMINATE, control))
            await look(watch, replace(daemon, clients=()))  # as of a server that is busy
            os.kill(older.pid, signal.SIGCONT)
            older.wait_until_accepted()
            await look(watch, running(rig, TERMINATE, control))
            await watch.settle()
        assert older.process.wait(stretched(30)) == 1
    assert not any(gone(client.pid) for client in clients)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, marks=pytest.mark.full),
        pytest.param({"NODEAGENT_MPS_SLOT": f"{GPU}/small-0"}, marks=pytest.mark.full),
        slot("small-0") | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=0G"},
        slot("small-0") | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"},
        {"NODEAGENT_MPS_SLOT": "../../small-0"},
    ],
)
async def test_no_share_and_ended(
    rig: Rig, start_client: Start, environment: Mapping[str, str]
) -> None:
    """Without one, without its limits, or with a forged one; at the first look."""
    start(rig, TERMINATE)
    client, good = start_client(**environment), start_client(**slot("large-0"))
    control = asking(rig)
    async with Watch() as watch:
        await look(watch, running(rig, TERMINATE, control))
        await watch.settle()
    assert client.process.wait(stretched(30)) == 1
    assert not gone(good.pid)
    assert {offence.client.pid for _, offence in watch.reported} == {client.pid}


async def test_too_much_memory_and_ended(rig: Rig, start_client: Start) -> None:
    """Not at once, since it may be giving it back; when it lasts, it is."""
    start(rig, TERMINATE)
    client = start_client(**slot("small-0"))
    control = asking(rig)
    async with Watch(grace=0.5) as watch:
        watch.used = {client.pid: 9 * GIB}
        await look(watch, running(rig, TERMINATE, control))
        await watch.settle()
        assert not gone(client.pid)
        await asyncio.sleep(0.6)
        await look(watch, running(rig, TERMINATE, control))
        await watch.settle()
    assert gone(client.pid)
    assert [offence.outcome != "" for _, offence in watch.reported] == [False, True]


async def test_whom_only_the_daemon_names(rig: Rig, start_client: Start) -> None:
    """Is reported and lives on: a daemon that runs for a tenant may name any process."""
    start(rig, TERMINATE)
    client = start_client()
    control = asking(rig)
    async with Watch() as watch:
        watch.unlisted = {client.pid}
        await look(watch, running(rig, TERMINATE, control))
        await watch.settle()
    assert not gone(client.pid)
    assert watch.kinds() == [(client.pid, "noShare"), (client.pid, "noShare")]
    assert watch.reported[-1][1].outcome == (
        "left alone: the driver does not list it as an MPS process of the device"
    )


async def test_whom_only_the_driver_lists(rig: Rig, start_client: Start) -> None:
    """Is ended too, where it is the plan's user's: a tenant's daemon may hide a client."""
    start(rig, TERMINATE)
    hidden = start_client()
    control = asking(rig)
    async with Watch() as watch:
        watch.hidden = {hidden.pid}
        daemon = replace(running(rig, TERMINATE, control), clients=())
        await look(watch, daemon)
        await watch.settle()
    assert hidden.process.wait(stretched(30)) == 1
    assert watch.reported[-1][1].outcome == "the daemon ended its work, and it ended by itself"


async def test_who_cannot_be_ended(rig: Rig, start_client: Start) -> None:
    """Is reported with the reason, and not tried again at every look."""
    start(rig, TERMINATE)
    client = start_client()
    rig.knobs.turn("terminate_code", 999)
    control = asking(rig)
    async with Watch() as watch:
        for _ in range(3):
            await look(watch, running(rig, TERMINATE, control))
            await watch.settle()
    assert not gone(client.pid)
    first, second = (offence.outcome for _, offence in watch.reported)
    assert first == ""
    assert second == "left alone: the daemon could not end its work, CUDA error 999"
    assert rig.log().count("terminate_client") == 1


_NAMELESS = """
import os, sys
sys.path.insert(0, {root!r})
os.environ["CUDA_MPS_PIPE_DIRECTORY"] = {pipes!r}
from nodeagent.simulation.mps.client_process import main
main([])
"""


async def test_whose_environment_is_not_known(rig: Rig) -> None:
    """Is reported, and never ended for it: it may well have its share."""
    start(rig, TERMINATE)
    script = _NAMELESS.format(root=str(Path(__file__).parents[3]), pipes=str(rig.pipes))
    with subprocess.Popen(
        [sys.executable, "-ISc", script], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout
        assert b"connected" in client.stdout.readline()
        assert b"limit" in client.stdout.readline()  # it was accepted
        control = asking(rig)
        async with Watch() as watch:
            [state] = await look(watch, running(rig, TERMINATE, control))
            await watch.settle()
        assert watch.kinds() == [(client.pid, "unreadable")]
        assert (state.share, memory_of(state).limit) == ("", 40 * GIB)
        assert client.poll() is None
        client.communicate(b"exit\n")


async def test_closing_ends_nothing(rig: Rig, start_client: Start) -> None:
    """A client that is being ended is left as it is, and no task is left."""
    start(rig, TERMINATE)
    client = start_client()
    rig.knobs.turn("terminate_code", -1)
    control = asking(rig)
    async with Watch() as watch:
        await look(watch, running(rig, TERMINATE, control))
        await asyncio.sleep(0.3)
    assert not gone(client.pid)
