"""How ResourceSlices are watched: what is asked of the API server, and what is found by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.cluster.slice_publisher import SlicePublisher
from tests.cluster.client.rig import kubeconfig, requested, running, until
from tests.cluster.test_slice_publisher import NODE, SLICES, offer_of, published
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer
from tests.simulated_cluster.store import Key

pytestmark = pytest.mark.virtual_time
SHORT = WatchIntervals(watch=(2.0, 2.0), retry=(0.01, 0.1))


@pytest.mark.parametrize("progress", [True, False])
async def test_an_hour_without_a_change_writes_nothing(tmp_path: Path, progress: bool) -> None:
    """With the times of the product, also where etcd has no progress notifications."""
    changes: list[object] = []
    async with (
        ApiServer(progress=progress) as server,
        ClusterAccess(kubeconfig(tmp_path, server.url)) as access,
    ):
        publisher = SlicePublisher(access, NODE, jitter=lambda: 0.5)
        publisher.state.subscribe(changes.append)
        async with running(publisher.run()):
            publisher.publish([offer_of()])
            await until(lambda: server.faults.watching)
            await asyncio.sleep(2.0)
            del server.requests[:]
            await asyncio.sleep(3600.0)
        assert requested(server).count("l") == 4
        assert requested(server).count("w") == len(server.requests) - 4 <= 60
        assert changes == []


async def test_a_program_that_undoes_each_write_makes_no_storm(tmp_path: Path) -> None:
    """A second agent of this node, say: after ten rounds at once there is one a second."""
    async with (
        ApiServer() as server,
        ClusterAccess(kubeconfig(tmp_path, server.url)) as access,
    ):

        async def undo() -> None:
            while True:
                for one in server.store.all(SLICES):
                    server.store.delete(Key(SLICES, "", one["metadata"]["name"]))
                await asyncio.sleep(0.1)

        publisher = SlicePublisher(access, NODE, jitter=lambda: 0.5)
        publisher.publish([offer_of()])
        async with running(publisher.run()):
            async with running(undo()):
                await asyncio.sleep(10.0)
            rounds = [r for r in server.requests if r.write and "sharedCounters" in str(r.body)]
            assert 10 < len(rounds) <= 21
            await until(lambda: published(server) == [offer_of()])


@pytest.mark.parametrize("serves", [False, True])
async def test_an_older_server_is_asked_seldom(tmp_path: Path, serves: bool) -> None:
    """One that serves no ResourceSlices, or drops counters: another offer is written and withdrawn
    once. Upgraded, it has all of them.
    """
    async with (
        ApiServer() as server,
        ClusterAccess(kubeconfig(tmp_path, server.url)) as access,
    ):
        server.slices.partitionable = False
        if not serves:
            server.faults.next(10**6, Answer(404), path="*resource.k8s.io/v1*")
        publisher = SlicePublisher(access, NODE, jitter=lambda: 0.5)
        async with running(publisher.run()):
            publisher.publish([offer_of()])
            await asyncio.sleep(3600.0)
            tries = "POST" if serves else "GET"
            assert 5 < sum(r.method == tries for r in server.requests) <= 25
            del server.requests[:]
            for number in range(9):
                await asyncio.sleep(1.0)
                publisher.publish([offer_of("a30" if number % 2 else "h100-80gb")])
            await asyncio.sleep(30.0)
            assert sum(r.write for r in server.requests) == (16 if serves else 0)
            server.faults.clear()
            server.slices.partitionable = True
            await asyncio.sleep(600.0)
            assert published(server) == [offer_of()]
