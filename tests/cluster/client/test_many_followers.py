"""A change passes without waits, and a fleet reconnects to its server spread over time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.cluster.node import KeptNode
from nodeagent.cluster.reflector import WatchIntervals
from tests.cluster.client.rig import PLAN, STATUS, Follower, kubeconfig, running, until
from tests.simulated_cluster.api_server import ApiServer

pytestmark = pytest.mark.virtual_time
FLEET = 60


async def test_an_answer_is_written_at_once(server: ApiServer, access: ClusterAccess) -> None:
    """Nor is there one from the patch to the status that names it."""
    clock = asyncio.get_running_loop().time
    intervals = WriteIntervals(interval=0.0)

    def answer(view: NodeView | None) -> None:
        if view is not None:
            node.want(Wanted({STATUS: f"done {view.annotations.get(PLAN)}"}))

    node = KeptNode(access, "n", on_view=answer, writes=intervals)
    took = []
    async with running(node.run()):
        await until(lambda: server.faults.watching)
        for number in range(200):
            begin = clock()
            server.annotate("n", **{PLAN: str(number)})
            while server.node("n")["metadata"]["annotations"].get(STATUS) != f"done {number}":
                await asyncio.sleep(0.0005)
            took.append(clock() - begin)
    assert max(took) < 0.005  # some turns of the loop above
    assert len([request for request in server.requests if request.write]) <= 201


@pytest.mark.full
async def test_a_fleet_comes_back_spread_out(tmp_path: Path) -> None:
    """Sixty followers with the real intervals lose their server for a second and find it again."""
    chance = random.Random(4).random
    async with ApiServer() as server, contextlib.AsyncExitStack() as stack:
        fleet = []
        for group in range(FLEET // 20):  # 20 share a client, because each costs 20 ms to build
            folder = tmp_path / str(group)
            folder.mkdir()
            clock = asyncio.get_running_loop().time
            access = ClusterAccess(kubeconfig(folder, server.url), clock=clock)
            await stack.enter_async_context(access)
            for member in range(20):
                name = f"n{group}-{member}"
                server.add_node(name)
                fleet.append(Follower(access, name, intervals=WatchIntervals(), jitter=chance))
        await stack.enter_async_context(running(*(seen.follower.run() for seen in fleet)))
        await until(lambda: len(server.faults.watching) == FLEET)
        assert len(server.requests) == 2 * FLEET

        await server.stop()
        await asyncio.sleep(1.0)
        del server.requests[:]
        begin = asyncio.get_running_loop().time()
        await server.restart()
        await until(lambda: len(server.faults.watching) == FLEET)
        times = sorted(request.time - begin for request in server.requests)
        assert all(seen.follower.fault is None for seen in fleet)

    tenths = [sum(1 for t in times if n <= t * 10 < n + 1) for n in range(int(times[-1] * 10) + 1)]
    found = f"{len(times)} requests in {times[-1]:.2f} s, by tenths: {tenths}"
    assert len(times) <= 3 * FLEET, found
    assert times[-1] > 1.0, found
    assert max(tenths) <= FLEET / 2, found  # without jitter it would be all of them, twice
