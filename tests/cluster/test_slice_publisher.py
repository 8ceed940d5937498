import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.offering.devices import Taint
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import WITHDRAWN, OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.cluster.slice_publisher import SlicePublisher
from nodeagent.structs import replace
from tests.cluster.client.rig import kubeconfig, requested, running
from tests.machine_load import until
from tests.plan.cards import card
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer
from tests.simulated_cluster.store import Key

pytestmark = pytest.mark.virtual_time
NODE = NodeReference("gpu-0", "11111111-2222-3333-4444-555555555555")
SLICES = "resourceslices"
WATCHES = WatchIntervals(retry=(0.01, 0.1))
WRITES = WriteIntervals(retry=(0.01, 0.1), denied=(0.01, 2.0))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@asynccontextmanager
async def publishing(
    server: ApiServer, folder: Path, node: NodeReference = NODE
) -> AsyncIterator[SlicePublisher]:
    async with ClusterAccess(kubeconfig(folder, server.url)) as access:
        publisher = SlicePublisher(access, node, watches=WATCHES, writes=WRITES)
        async with running(publisher.run()):
            yield publisher


def offer_of(board: str = "h100-80gb", number: int = 0) -> PoolOffer:
    gpu = replace(card(board), uuid=f"GPU-{number}", index=number)
    return pool_offer(gpu, OfferContext(NODE.name, GpuRules(), now=1_700_000_000))


def published(server: ApiServer) -> list[PoolOffer]:
    pools: dict[str, list[Any]] = {}
    for one in server.store.all(SLICES):
        pools.setdefault(one["spec"]["pool"]["name"], []).append(one)
    complete = [
        slices
        for slices in pools.values()
        if all(s["spec"]["pool"]["resourceSliceCount"] == len(slices) for s in slices)
        and len({s["spec"]["pool"]["generation"] for s in slices}) == 1
    ]
    return [offer for offer in map(read_offer, complete) if offer is not None]


async def offered(server: ApiServer, publisher: SlicePublisher, *offers: PoolOffer) -> None:
    publisher.publish(offers)
    await until(lambda: published(server) == list(offers))


def writes(server: ApiServer) -> list[str]:
    return [r.method for r in server.requests if r.write and SLICES in r.path]


async def test_offers_are_written_and_then_it_is_quiet(server: ApiServer, tmp_path: Path) -> None:
    offer = offer_of()
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer)
        bodies = [r.body for r in server.requests if r.method == "POST"]
        assert ["sharedCounters" in body["spec"] for body in bodies if body] == [True, False]
        await until(lambda: any(r.watch for r in server.requests))
        publisher.publish([offer])
        changed = replace(offer, devices=offer.devices[:-1])
        await offered(server, publisher, changed)
        assert writes(server) == ["POST", "POST", "PUT"]
        assert publisher.state.newest.problem is None


async def test_wiped_slices_are_restored(server: ApiServer, tmp_path: Path) -> None:
    offers = [offer_of(), offer_of("a30", 1)]
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, *offers)
        for names in (
            [one["metadata"]["name"] for one in server.store.all(SLICES)],
            [server.store.all(SLICES)[0]["metadata"]["name"]],
        ):
            await until(lambda: any(r.watch for r in server.requests))
            for name in names:
                server.store.delete(Key(SLICES, "", name))
            await until(lambda: published(server) == offers)


async def test_what_was_wiped_unseen_is_looked_at(server: ApiServer, tmp_path: Path) -> None:
    """A watch may be behind: what is not there to be changed is made."""
    offer = offer_of()
    changed = replace(offer, devices=offer.devices[:-1])
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer)
        with server.unsent():
            server.store.delete(Key(SLICES, "", server.store.all(SLICES)[1]["metadata"]["name"]))
        await offered(server, publisher, changed)
    assert writes(server) == ["POST", "POST", "PUT", "PUT", "POST"]


async def test_what_another_agent_left_becomes_ours(server: ApiServer, tmp_path: Path) -> None:
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer_of(), offer_of("a30", 1))
    async with publishing(server, tmp_path) as publisher:
        publisher.publish([offer_of("a30", 1)])
        await until(lambda: len(server.store.all(SLICES)) == 2)
        assert published(server) == [offer_of("a30", 1)]
        assert writes(server) == ["POST"] * 4 + ["DELETE"] * 2


async def test_without_counters_nothing_is_offered(server: ApiServer, tmp_path: Path) -> None:
    """A server that drops them silently: no device stays, and the reason is said."""
    server.slices.partitionable = False
    async with publishing(server, tmp_path) as publisher:
        publisher.publish([offer_of()])
        await until(lambda: publisher.state.newest.problem)
        assert publisher.state.newest.problem
        assert "DRAPartitionableDevices" in publisher.state.newest.problem.message
        await until(lambda: not server.store.all(SLICES))
        assert not any("devices" in (r.body or {}).get("spec", {}) for r in server.requests)
        server.slices.partitionable = True
        await until(lambda: published(server) == [offer_of()])
        await until(lambda: publisher.state.newest.problem is None)


async def test_before_the_first_offer_nothing_is_written(server: ApiServer, tmp_path: Path) -> None:
    async with publishing(server, tmp_path):
        async with publishing(server, tmp_path) as publisher:
            publisher.publish([offer_of()])
            await until(lambda: published(server))
        server.store.delete(Key(SLICES, "", server.store.all(SLICES)[0]["metadata"]["name"]))
        await asyncio.sleep(0.3)
    assert writes(server) == ["POST", "POST"]


async def test_what_is_published_is_read_back(server: ApiServer, tmp_path: Path) -> None:
    taint = Taint(WITHDRAWN, 1_700_000_000)
    offer = offer_of()
    offer = replace(offer, devices=tuple(replace(d, taints=(taint,)) for d in offer.devices))
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer, offer_of("a30", 1))
    for one in server.store.all(SLICES):
        if "devices" in one["spec"] and "gpu-1" in one["metadata"]["name"]:
            key = Key(SLICES, "", one["metadata"]["name"])
            server.store.change(
                key, lambda found: {**found, "spec": {**found["spec"], "devices": [{}]}}
            )
    async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
        publisher = SlicePublisher(access, NODE, watches=WATCHES, writes=WRITES)
        async with running(publisher.run()):
            async with server.refusing():
                await until(lambda: publisher.state.newest.problem)
            assert await publisher.earlier_offers() == (offer,)
            assert publisher.state.newest.problem is None


async def test_slices_of_a_node_that_is_made_anew(server: ApiServer, tmp_path: Path) -> None:
    """They are the new one's, or the cluster would delete them again and again."""
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer_of())
        publisher.set_owner(NODE.uid)
        publisher.set_owner("22222222-2222-3333-4444-555555555555")
        await until(lambda: owners(server) == {"22222222-2222-3333-4444-555555555555"})
        assert writes(server) == ["POST", "POST", "PUT", "PUT"]
        assert published(server) == [offer_of()]


async def test_nothing_is_published_without_a_node(server: ApiServer, tmp_path: Path) -> None:
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer_of())
        publisher.set_owner("")
        for one in server.store.all(SLICES):
            server.store.delete(Key(SLICES, "", one["metadata"]["name"]))
        await asyncio.sleep(0.3)
        publisher.publish([offer_of("a30")])
        await asyncio.sleep(0.1)
        assert writes(server) == ["POST", "POST"]
        publisher.set_owner(NODE.uid)
        await until(lambda: published(server) == [offer_of("a30")])


def owners(server: ApiServer) -> set[str]:
    slices = server.store.all(SLICES)
    return {owner["uid"] for one in slices for owner in one["metadata"]["ownerReferences"]}


async def test_other_drivers_are_known(server: ApiServer, tmp_path: Path) -> None:
    theirs = {
        "metadata": {"name": "gpu-0-gpu.nvidia.com-abc"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "pool": {"name": NODE.name, "generation": 1, "resourceSliceCount": 1},
            "nodeName": NODE.name,
            "devices": [{"name": "gpu-0"}],
        },
    }
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer_of())
        assert publisher.state.newest.others == frozenset()
        await until(lambda: any(r.watch for r in server.requests))
        server.store.create(SLICES, "", theirs)
        await until(lambda: publisher.state.newest.others == {"gpu.nvidia.com"})
        publisher.publish([])
        await until(lambda: len(server.store.all(SLICES)) == 1)
        server.store.delete(Key(SLICES, "", "gpu-0-gpu.nvidia.com-abc"))
        await until(lambda: publisher.state.newest.others == frozenset())


async def test_a_driver_of_another_name(server: ApiServer, tmp_path: Path) -> None:
    """The former's slices are gone before there are others of the same GPU."""
    async with publishing(server, tmp_path) as publisher:
        await offered(server, publisher, offer_of())
    named = replace(NODE, driver="gpu.nvidia.com")
    async with publishing(server, tmp_path, named) as publisher:
        assert await publisher.earlier_offers() == (offer_of(),)
        publisher.publish([offer_of()])
        await until(lambda: writes(server)[2:] == ["DELETE", "DELETE", "POST", "POST"])
        assert published(server) == [offer_of()]
        assert {one["spec"]["driver"] for one in server.store.all(SLICES)} == {named.driver}
        assert publisher.state.newest.others == frozenset()


async def test_a_server_without_taints(server: ApiServer, tmp_path: Path) -> None:
    server.slices.taints = False
    changes: list[object] = []
    taint = Taint(WITHDRAWN, 1_700_000_000)
    offer = offer_of()
    sick = replace(offer, devices=(replace(offer.devices[0], taints=(taint,)), *offer.devices[1:]))
    async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
        publisher = SlicePublisher(access, NODE, watches=WATCHES, writes=WRITES)
        publisher.state.subscribe(changes.append)
        async with running(publisher.run()):
            await offered(server, publisher, offer)
            assert publisher.state.newest.keeps_taints
            publisher.publish([sick])
            await until(lambda: not publisher.state.newest.keeps_taints)
            assert changes
            publisher.publish([replace(offer, devices=offer.devices[1:])])
            await until(lambda: publisher.state.newest.problem is None)


# --- with the times of the product ----------------------------------------------------------------


@pytest.mark.parametrize("progress", [True, False])
async def test_an_hour_without_a_change_writes_nothing(tmp_path: Path, progress: bool) -> None:
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
    async with ApiServer() as server, ClusterAccess(kubeconfig(tmp_path, server.url)) as access:

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
    async with ApiServer() as server, ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
        server.slices.partitionable = False
        if not serves:
            server.faults.next(10**6, Answer(404), path="*resource.k8s.io/v1*")
        publisher = SlicePublisher(access, NODE, jitter=lambda: 0.5)
        async with running(publisher.run()):
            publisher.publish([offer_of()])
            await asyncio.sleep(3600.0)
            if not serves:
                problem = publisher.state.newest.problem
                assert problem
                assert "resource.k8s.io/v1" in problem.message
                assert "Kubernetes 1.34" in problem.remedy
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
