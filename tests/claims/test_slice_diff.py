"""Writes that bring ResourceSlices to the offers, against a small model of the API server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from nodeagent.claims.offering.devices import Taint
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer
from nodeagent.claims.offering.slice_diff import (
    CreateSlice,
    DeleteSlice,
    SliceWrite,
    UpdateSlice,
    slice_writes,
)
from nodeagent.structs import replace
from tests.plan.cards import card

NODE = NodeReference("gpu-node-0", "11111111-2222-3333-4444-555555555555")


class Server:
    """Slices by name; each write needs the version that it replaces."""

    def __init__(self) -> None:
        self.slices: dict[str, Any] = {}
        self.version = 0

    def take(self, writes: Sequence[SliceWrite]) -> None:
        for write in writes:
            self.version += 1
            match write:
                case CreateSlice(body):
                    assert body["metadata"]["name"] not in self.slices
                    self._store(body)
                case UpdateSlice(body):
                    there = self.slices[body["metadata"]["name"]]
                    version = there["metadata"]["resourceVersion"]
                    assert body["metadata"]["resourceVersion"] == version
                    self._store(body)
                case DeleteSlice(name):
                    del self.slices[name]

    def _store(self, body: Any) -> None:
        metadata = {**body["metadata"], "resourceVersion": str(self.version), "uid": "made"}
        self.slices[body["metadata"]["name"]] = {**body, "metadata": metadata}

    def found(self) -> list[Any]:
        return list(self.slices.values())

    def pools(self) -> dict[str, list[Any]]:
        """The specs by pool."""
        pools: dict[str, list[Any]] = {}
        for one in self.slices.values():
            pools.setdefault(one["spec"]["pool"]["name"], []).append(one["spec"])
        return pools


def offer_of(board: str, number: int = 0) -> PoolOffer:
    """An empty card's, for claims as a whole."""
    gpu = replace(card(board), uuid=f"GPU-{number}", index=number)
    return pool_offer(gpu, OfferContext("gpu-node-0", GpuRules(), now=1_700_000_000))


def assert_consistent(server: Server) -> None:
    """What a scheduler requires before it uses a pool."""
    for specs in server.pools().values():
        assert len({spec["pool"]["generation"] for spec in specs}) == 1
        assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}


def tainted(offer: PoolOffer, number: int) -> PoolOffer:
    """One device has a taint."""
    taint = Taint("gpu.nodeagent.io/unhealthy", 1_700_000_100)
    devices = list(offer.devices)
    devices[number] = replace(devices[number], taints=(taint,))
    return replace(offer, devices=tuple(devices))


@pytest.mark.parametrize("board", ["a30", "h100-80gb", "rtx-pro-6000"])
def test_the_first_publication_writes_counters_first(board: str) -> None:
    """Once written, nothing more is to be written; the offer can be read back from it."""
    server, offer = Server(), offer_of(board)
    writes = slice_writes([offer], [], NODE)
    assert all(isinstance(write, CreateSlice) for write in writes)
    assert isinstance(writes[0], CreateSlice)
    assert "sharedCounters" in writes[0].body["spec"]
    server.take(writes)
    assert slice_writes([offer], server.found(), NODE) == ()
    assert read_offer(server.found()) == offer
    assert_consistent(server)


def test_one_slice_keeps_the_generation() -> None:
    """A taint that comes and goes is one write."""
    server, offer = Server(), offer_of("h100-80gb")
    server.take(slice_writes([offer], [], NODE))
    for wanted in (tainted(offer, 3), offer):
        [write] = slice_writes([wanted], server.found(), NODE)
        assert isinstance(write, UpdateSlice)
        assert write.body["spec"]["pool"]["generation"] == 0
        server.take([write])
        assert read_offer(server.found()) == wanted


def test_wiped_slices_come_again_in_a_new_generation() -> None:
    """A kubelet deletes its node's slices when it starts; some of them, or all."""
    server, offer = Server(), offer_of("h100-80gb")
    server.take(slice_writes([offer], [], NODE))
    del server.slices[min(server.slices)]
    server.take(slice_writes([offer], server.found(), NODE))
    assert_consistent(server)
    assert {s["pool"]["generation"] for specs in server.pools().values() for s in specs} == {1}
    server.slices.clear()
    server.take(slice_writes([offer], server.found(), NODE))
    assert read_offer(server.found()) == offer


def test_a_gpu_that_is_no_more_takes_its_slices_along() -> None:
    """Also where it offers nothing any more; other pools are left."""
    server, one, two = Server(), offer_of("h100-80gb"), offer_of("a30", 1)
    server.take(slice_writes([one, two], [], NODE))
    server.take(slice_writes([replace(one, devices=()), two], server.found(), NODE))
    assert list(server.pools()) == [two.pool]
    assert slice_writes([two], server.found(), NODE) == ()


@pytest.mark.parametrize("rounds", [60, pytest.param(600, marks=pytest.mark.full)])
def test_random_changes_always_end_in_the_offers(rounds: int) -> None:
    """Whatever was there before, by another agent or half written: consistent, and then quiet."""
    rng = random.Random(5)
    boards = ["a30", "h100-80gb", "rtx-pro-6000"]
    server = Server()
    for _ in range(rounds):
        offers = [offer_of(rng.choice(boards), n) for n in range(3) if rng.random() < 0.8]
        offers = [tainted(o, rng.randrange(5)) if rng.random() < 0.4 else o for o in offers]
        writes = slice_writes(offers, server.found(), NODE)
        if rng.random() < 0.3:  # the agent is killed in between
            server.take(writes[: rng.randint(0, len(writes))])
            continue
        server.take(writes)
        assert_consistent(server)
        assert slice_writes(offers, server.found(), NODE) == ()
        for specs, offer in zip(
            sorted(server.pools()), sorted(o.pool for o in offers), strict=True
        ):
            assert specs == offer
        for name in rng.sample(sorted(server.slices), rng.randint(0, len(server.slices))):
            if rng.random() < 0.3:
                del server.slices[name]
