"""Writes that bring ResourceSlices to the offers, against a small model of the API server."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nodeagent.claims.offering.devices import Taint
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import (
    NodeReference,
    SliceDiff,
    read_offer,
    slice_diff,
)
from nodeagent.structs import replace
from tests.plan.cards import card

NODE = NodeReference("gpu-node-0", "11111111-2222-3333-4444-555555555555")


class Server:
    """Slices by name; each write needs the version that it replaces."""

    def __init__(self) -> None:
        self.slices: dict[str, Any] = {}
        self.version = 0

    def diff(self, offer: PoolOffer) -> SliceDiff:
        """What is still to be written of the pool."""
        found = self.slices.values()
        present = [one for one in found if one["spec"]["pool"]["name"] == offer.pool]
        return slice_diff(offer, present, NODE)

    def take(self, diff: SliceDiff, most: int | None = None) -> None:
        """Write all of it, or the first requests."""
        for name in diff.delete[:most]:
            del self.slices[name]
        left = None if most is None else max(0, most - len(diff.delete))
        for body in diff.write[:left]:
            self.version += 1
            there = self.slices.get(body["metadata"]["name"])
            version = there and there["metadata"]["resourceVersion"]
            assert body["metadata"].get("resourceVersion") == version
            metadata = {**body["metadata"], "resourceVersion": str(self.version), "uid": "made"}
            self.slices[body["metadata"]["name"]] = {**body, "metadata": metadata}

    def publish(self, *offers: PoolOffer) -> None:
        for offer in offers:
            self.take(self.diff(offer))

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


NOTHING = SliceDiff()


@pytest.mark.parametrize("board", ["a30", "h100-80gb", "rtx-pro-6000"])
def test_the_first_publication_writes_counters_first(board: str) -> None:
    """Once written, nothing more is to be written; the offer can be read back from it."""
    server, offer = Server(), offer_of(board)
    diff = server.diff(offer)
    assert diff.delete == ()
    assert "sharedCounters" in diff.write[0]["spec"]
    server.take(diff)
    assert server.diff(offer) == NOTHING
    assert read_offer(server.found()) == offer
    assert_consistent(server)


def test_one_slice_keeps_the_generation() -> None:
    """A taint that comes and goes is one write."""
    server, offer = Server(), offer_of("h100-80gb")
    server.publish(offer)
    for wanted in (tainted(offer, 3), offer):
        diff = server.diff(wanted)
        [body] = diff.write
        assert body["spec"]["pool"]["generation"] == 0
        server.take(diff)
        assert read_offer(server.found()) == wanted


def test_after_the_largest_generation_it_begins_anew() -> None:
    """Another program may have set it; the API server takes no larger one."""
    server, offer = Server(), offer_of("h100-80gb")
    server.publish(offer)
    for body in server.slices.values():
        body["spec"]["pool"]["generation"] = 2**63 - 1
    del server.slices[min(server.slices)]
    server.publish(offer)
    assert {s["pool"]["generation"] for specs in server.pools().values() for s in specs} == {1}


def test_a_gpu_that_offers_nothing_has_no_slices() -> None:
    """Other pools are left."""
    server, one, two = Server(), offer_of("h100-80gb"), offer_of("a30", 1)
    server.publish(one, two)
    server.publish(replace(one, devices=(), totals={}))
    assert list(server.pools()) == [two.pool]
    assert server.diff(two) == NOTHING


@pytest.mark.parametrize("rounds", [60, pytest.param(600, marks=pytest.mark.full)])
def test_random_changes_always_end_in_the_offers(rounds: int) -> None:
    """Whatever was there before, by another agent or half written: consistent, and then quiet."""
    rng = random.Random(5)
    boards = ["a30", "h100-80gb", "rtx-pro-6000"]
    server = Server()
    for _ in range(rounds):
        offer = offer_of(rng.choice(boards), rng.randrange(3))
        offer = tainted(offer, rng.randrange(5)) if rng.random() < 0.4 else offer
        diff = server.diff(offer)
        if rng.random() < 0.3:  # the agent is killed in between
            server.take(diff, rng.randint(0, len(diff.delete) + len(diff.write)))
            server.publish(offer)
        else:
            server.take(diff)
        specs = server.pools()[offer.pool]
        assert len({spec["pool"]["generation"] for spec in specs}) == 1
        assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
        assert server.diff(offer) == NOTHING
        for name in rng.sample(sorted(server.slices), rng.randint(0, len(server.slices))):
            if rng.random() < 0.3:
                del server.slices[name]
