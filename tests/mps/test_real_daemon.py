"""Process and control client against whatever nvidia-cuda-mps-control is on PATH.

Without a GPU a real daemon starts and keeps defaults; only its servers need one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodeagent.mps.control.client import ControlClient, DaemonDead, DaemonSilent
from nodeagent.mps.control.commands import (
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
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import DaemonProcess
from nodeagent.mps.processes import CONTROL, mps_process
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from tests.machine_load import stretched

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
