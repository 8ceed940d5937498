"""Kill after kill: a daemon is back with its limits, and nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL
from tests.mps.fleet_rig import GPU, OTHER_GPU, FleetRig, limits, ready, status, until, wanted


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.full)])
async def test_kills(kills: int) -> None:
    """Ready again with its limits, whether it had a server or not; how soon, `make bench` says."""
    with FleetRig() as rig:
        async with rig.fleet() as fleet:
            await asyncio.gather(fleet.start(GPU, wanted()), fleet.start(OTHER_GPU, wanted()))
            undisturbed = status(fleet, OTHER_GPU)
            for number in range(kills):
                if number % 5 == 0:  # with a server, that becomes an orphan
                    with rig.client() as client:
                        await asyncio.to_thread(client.wait_until_accepted)
                    assert len(rig.servers(GPU)) == 1
                await _killed(fleet)
                [daemon] = rig.processes(CONTROL, GPU)
                assert daemon.pid == status(fleet).pid
                assert rig.servers(GPU) == []
            assert await limits(fleet) == ("4G", 50.0)
            assert status(fleet).restarts == kills
            assert status(fleet, OTHER_GPU) == undisturbed
            assert [r for d, r in rig.reports if d == OTHER_GPU][2:] == []
            assert len(rig.said(Subject.EXITED)) == kills


async def _killed(fleet: Fleet) -> None:
    """Kill it and wait until another is Ready, which no backoff delays: it was steady."""
    pid = status(fleet).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: status(fleet).pid != pid)
    await ready(fleet)
