"""The offers of a node over time: across restarts, lost GPUs and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.names import pool_name
from nodeagent.claims.offering.devices import GpuFacts
from nodeagent.claims.offering.gpu_rules import Mode
from nodeagent.claims.offering.node_offers import NodeOffers, goals_of
from nodeagent.claims.offering.pool_offer import (
    OCCUPIED,
    UNHEALTHY,
    WITHDRAWAL,
    WITHDRAWN,
    PoolOffer,
)
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer, resource_slices
from nodeagent.claims.records import UnreadableRecord
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled
from nodeagent.plan.observed import Gpu, HealthLimits, ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace
from tests.claims.boards import NODE, with_devices
from tests.claims.samples import mig_device, mig_result, record
from tests.plan.cards import card, wanted

NOON = 1_800_000_000  # seconds since 1970
GPU = replace(card("h100-80gb"), uuid="GPU-1")
POOL = pool_name(NODE, GPU.uuid)
GOAL = wanted(GPU, [("3g.40gb", 1)])


def make(
    offers: NodeOffers,
    *gpus: Gpu,
    goal: DesiredGpu | None = None,
    records: Sequence[ClaimRecord] = (),
    now: int = NOON,
) -> dict[str, PoolOffer]:
    """By pool."""
    goals = {GPU.uuid: goal} if goal else {}
    facts = {GPU.uuid: GpuFacts("580.65.06")}
    made = offers.make(gpus, goals, records, now=now, facts=facts)
    return {offer.pool: offer for offer in made}


def published(*offers: PoolOffer) -> list[PoolOffer]:
    """As an API server gives them back."""
    node = NodeReference(NODE, "11111111-2222-3333-4444-555555555555")
    read = [read_offer(resource_slices(offer, node, 7)) for offer in offers]
    return [offer for offer in read if offer]


def tainted(offer: PoolOffer, key: str) -> set[str]:
    """The names of the devices with a taint of that key."""
    return {d.name for d in offer.devices if key in {t.key for t in d.taints}}


def names(offer: PoolOffer) -> set[str]:
    """Of all its devices."""
    return {device.name for device in offer.devices}


def using(device: str) -> ClaimRecord:
    """A claim that has it."""
    return record(mig_device(gpu=GPU.uuid, result=mig_result(pool=POOL, device=device)))


def test_a_withdrawal_goes_on_after_a_restart() -> None:
    """The next agent reads what is published, and withdraws when the ten minutes are over."""
    first = NodeOffers(NODE, Mode.DYNAMIC)
    before = make(first, GPU)[POOL]
    there = with_devices(GPU, ["mig-3g-40gb-4"])
    withdrawing = make(first, there, goal=GOAL)[POOL]
    assert names(withdrawing) == names(before)
    gone = tainted(withdrawing, WITHDRAWN)
    assert {"gpu", "mig-7g-80gb-0", "mig-1g-10gb-5"} <= gone
    second = NodeOffers(NODE, Mode.DYNAMIC)
    second.continue_from(published(withdrawing))
    almost = make(second, there, goal=GOAL, now=NOON + WITHDRAWAL - 1)[POOL]
    assert almost == withdrawing
    assert (
        names(make(second, there, goal=GOAL, now=NOON + WITHDRAWAL)[POOL]) == names(before) - gone
    )


def test_a_gpu_that_is_gone() -> None:
    """Its devices are tainted and withdrawn ten minutes later, but for what claims hold."""
    offers = NodeOffers(NODE, Mode.DYNAMIC)
    offers.continue_from(published(make(NodeOffers(NODE, Mode.DYNAMIC), GPU)[POOL]))
    held = using("mig-1g-10gb-5")
    found = make(offers, records=[held])[POOL]
    assert tainted(found, WITHDRAWN) == tainted(found, UNHEALTHY) == names(found)
    later = make(offers, records=[held], now=NOON + WITHDRAWAL)[POOL]
    assert names(later) == {"mig-1g-10gb-5"}
    assert make(offers, now=NOON + WITHDRAWAL)[POOL].devices == ()
    assert make(offers, now=NOON + WITHDRAWAL) == {}


def test_another_program_hands_out_the_gpus() -> None:
    """What is offered is withdrawn, and what claims hold stays; it comes back when that ends."""
    offers, held = NodeOffers(NODE, Mode.DYNAMIC), using("mig-2g-20gb-0")
    before = make(offers, GPU, records=[held])[POOL]
    offers.closed = "NVIDIA's DRA driver is here"
    closed = make(offers, GPU, records=[held])[POOL]
    assert tainted(closed, WITHDRAWN) == names(before)
    assert offers.rules(GPU, {}, ()).closed == "NVIDIA's DRA driver is here"
    later = make(offers, GPU, records=[held], now=NOON + WITHDRAWAL)[POOL]
    assert names(later) == {"mig-2g-20gb-0"}
    offers.closed = ""
    assert make(offers, GPU, records=[held], now=NOON + WITHDRAWAL)[POOL] == before
    never = NodeOffers(NODE, Mode.DYNAMIC)
    never.closed = "a device plugin is here"
    assert make(never, GPU)[POOL].devices == ()


def test_a_server_without_taints() -> None:
    """What would be tainted is not published at all, since the taint would be lost."""
    offers, held = NodeOffers(NODE, Mode.STATIC), using("mig-3g-40gb-4")
    there = with_devices(GPU, ["mig-3g-40gb-4"])
    sick = replace(there, health_limits=HealthLimits(whole=True, why="broken"))
    tainted_device = make(offers, sick, goal=GOAL)[POOL].devices[0]
    assert [t.key for t in tainted_device.taints] == [UNHEALTHY]
    offers.keeps_taints = False
    assert make(offers, sick, goal=GOAL)[POOL].devices == ()
    [device] = make(offers, sick, goal=GOAL, records=[held])[POOL].devices
    assert device == replace(tainted_device, taints=())
    [device] = make(offers, there, goal=GOAL)[POOL].devices
    assert device.taints == ()


def test_a_record_that_cannot_be_read_holds_back_its_gpu() -> None:
    """A claim could not be prepared there, so no scheduler is to choose it."""
    offers, other = NodeOffers(NODE, Mode.DYNAMIC), replace(GPU, uuid="GPU-2", index=1)
    damaged = UnreadableRecord(Path("/claims/x.json"), "x", "it is cut off", frozenset({GPU.uuid}))
    held_back, free = offers.make([GPU, other], {}, (), now=NOON, unreadable=[damaged])
    assert tainted(held_back, OCCUPIED) == names(held_back)
    assert held_back.reason == Problem(
        code=Code.STATE_FILE, message=damaged.message, remedy=damaged.remedy, gpu=GPU.uuid
    )
    assert not tainted(free, OCCUPIED)
    anywhere = replace(damaged, gpus=None)
    both = offers.make([GPU, other], {}, (), now=NOON, unreadable=[anywhere])
    assert all(tainted(offer, OCCUPIED) == names(offer) for offer in both)
    assert not any(tainted(o, OCCUPIED) for o in offers.make([GPU, other], {}, (), now=NOON))


def test_goals_are_those_of_the_plan_in_force() -> None:
    """By UUID; a GPU that no plan names has none."""
    goal = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
    node = ObservedNode((GPU, replace(GPU, uuid="GPU-2", index=1)))
    assert goals_of(plan(DesiredNode({GPU.uuid: goal}), node)) == {GPU.uuid: goal}
    assert goals_of(None) == {}
