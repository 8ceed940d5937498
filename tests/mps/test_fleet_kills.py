"""Fifty kills: how soon a daemon is back with its limits, and that nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time

from nodeagent.mps.commands import GetDefaultMemoryLimit, GetDefaultThreads
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.identity import CONTROL
from nodeagent.mps.lifecycle.values import Subject
from tests.mps.fleet_rig import GPU, OTHER_GPU, FleetRig, ready, status, until, wanted

KILLS = 50


async def test_fifty_kills() -> None:
    """Ready again with limits: half of the time well under 0.3 s , nearly always
    under 1 s; bounds here are twice that, since tests share their machine.
    """
    times = []
    with FleetRig() as rig:
        async with rig.fleet() as fleet:
            await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
            undisturbed = status(fleet, OTHER_GPU)
            for number in range(KILLS):
                if number % 5 == 0:  # with a server, that becomes an orphan
                    with rig.client() as client:
                        await asyncio.to_thread(client.wait_until_accepted)
                    assert len(rig.servers(GPU)) == 1
                times.append(await _killed(fleet))
                [daemon] = rig.processes(CONTROL, GPU)
                assert daemon.pid == status(fleet).pid
                assert rig.servers(GPU) == []
            [running] = [one for one in fleet.running() if one.device == GPU]
            memory, threads = await running.control.ask_all(
                GetDefaultMemoryLimit(), GetDefaultThreads()
            )
            assert (str(memory), threads) == ("4G", 50.0)
            assert status(fleet).restarts == KILLS
            assert status(fleet, OTHER_GPU) == undisturbed
            assert [r for d, r in rig.reports if d == OTHER_GPU][2:] == []
            assert len(rig.said(Subject.EXITED)) == KILLS
    times.sort()
    half, most = statistics.median(times), times[int(0.99 * (KILLS - 1))]
    told = f"{KILLS} kills: p50 {half * 1000:.0f} ms, p99 {most * 1000:.0f} ms "
    assert half < 0.6, told
    assert most < 2.0, told


async def _killed(fleet: Fleet) -> float:
    """Seconds to Ready, which no backoff delays: it was steady."""
    pid = status(fleet).pid
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: status(fleet).pid != pid)
    await ready(fleet)
    return time.monotonic() - began
