"""Claims of a GPU while the setting of how they share it changes, and the agent is restarted."""

import random
from functools import partial
from pathlib import Path

import pytest

from nodeagent.claims.capacity import MEMORY, capacity_of, excess
from nodeagent.claims.model import ClaimRecord, ClaimReference
from nodeagent.claims.names import WHOLE_GPU
from nodeagent.claims.offering.gpu_rules import Mode
from nodeagent.claims.offering.node_offers import NodeOffers
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer, resource_slices
from nodeagent.claims.serving.admission import intended, require_admission
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import ObservedNode
from tests.claims.boards import NODE, mig_off, with_devices
from tests.claims.machine import no_daemons, uid
from tests.claims.samples import allocation, claim_json
from tests.plan.cards import card
from tests.simulated_cluster.allocator import Allocated, Request, complete_pools, first_fit, of_type
from tests.simulated_cluster.resource_slices import SliceRules

NODE_REFERENCE = NodeReference(NODE, "uid")
DAEMONS = ClaimDaemons("1000", Path("/run/nodeagent"), False, no_daemons)
SETTINGS: tuple[SharedBy, ...] = ("off", "memory", 2, 4, "time")


@pytest.mark.parametrize("board", ["l40s", "h100-80gb"])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_offered_is_admitted(board: str, seed: int) -> None:
    """What claims have stays published, and a scheduler gets nothing that the agent refuses. As
    soon as only monitors are left, the GPU is offered as the setting has it. Every third API server
    knows no taints.
    """
    rng, now = random.Random(f"{board} {seed}"), 0
    bare = mig_off(card(board)) if card(board).mig else card(board)
    held: dict[str, tuple[ClaimRecord, Allocated, bool]] = {}
    offer: PoolOffer | None = None
    new = partial(NodeOffers, NODE, Mode.DYNAMIC)
    offers = new()
    for number in range(60):
        if number % 5 == 0:
            share, share_mig = rng.choices(SETTINGS, k=2)
            new = partial(NodeOffers, NODE, Mode.DYNAMIC, share=share, share_mig=share_mig)
            offers = new()
            offers.keeps_taints = seed % 3 > 0
            slices = resource_slices(offer, NODE_REFERENCE, 1) if offer else ()
            offers.continue_from(filter(None, [read_offer(slices)]))
        if held and rng.random() < 0.3:
            del held[rng.choice(list(held))]
        now += rng.choice([1, 700])
        records = [record for record, _, _ in held.values()]
        parts = sorted({one.device for _, one, _ in held.values()} - {WHOLE_GPU})
        gpu = with_devices(card(board), parts) if parts else bare
        [offer] = offers.make([gpu], {}, records, now=now)
        published = {device.name: device for device in offer.devices}
        assert {one.device for _, one, _ in held.values()} <= published.keys()
        taken = [one for _, one, is_monitor in held.values() if not is_monitor]
        if not taken:
            [fresh] = new().make([gpu], {}, (), now=now)
            assert all(device in offer.devices for device in fresh.devices)
        asked = {MEMORY: rng.randint(1, gpu.memory // rng.choice([1, 4, 10, 20]))}
        wanted = Request(of_type(rng.choice(["gpu", "gpu", "mig"])), rng.choice([asked, {}]))
        slices = resource_slices(offer, NODE_REFERENCE, 1)
        pools = complete_pools([SliceRules().admitted(dict(one)) for one in slices])
        for found in first_fit(pools, taken, wanted):
            is_monitor = found.device == WHOLE_GPU and rng.random() < 0.2
            result = {**found.result("gpu", uid(number)), "adminAccess": is_monitor}
            record = intended(
                ClaimReference("team", f"claim-{number}"),
                uid(number),
                allocation(claim_json(result)),
                ObservedNode((gpu,)),
                DAEMONS,
                rules=partial(offers.rules, goals={}, records=records),
                node=NODE,
                boot_id="boot-1",
            )
            require_admission(record, gpu, records, ())
            held[record.uid] = record, found, is_monitor
            [device] = record.devices
            all_of_it = capacity_of(gpu, gpu.profile(device.profile))
            assert not excess(all_of_it, record.consumed_of(device))
