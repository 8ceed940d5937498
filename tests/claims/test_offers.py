"""What GPUs publish over time: what stays, is tainted, is withdrawn, and in which order; also
across restarts, lost GPUs and other programs.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.names import WHOLE_GPU, places, pool_name
from nodeagent.claims.offering.devices import GpuFacts, OfferedDevice, Taint
from nodeagent.claims.offering.gpu_rules import FixedInstance, GpuRules, Mode, Planned
from nodeagent.claims.offering.node_offers import NodeOffers, goals_of
from nodeagent.claims.offering.pool_offer import (
    OCCUPIED,
    UNHEALTHY,
    WITHDRAWAL,
    WITHDRAWN,
    OfferContext,
    PoolOffer,
    pool_offer,
)
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer, resource_slices
from nodeagent.claims.records import UnreadableRecord
from nodeagent.plan.desired import DesiredGpu, DesiredNode, Layout, MigDisabled
from nodeagent.plan.observed import Access, Gpu, HealthLimits, ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace
from tests.claims.boards import KINDS, NODE, legal_sets, mig_off, with_devices
from tests.claims.samples import mig_device, mig_result, record, whole_device
from tests.plan.cards import card, wanted

NOON = 1_800_000_000  # seconds since 1970
DYNAMIC = OfferContext(NODE, GpuRules(), NOON)
DISABLED = Planned(DesiredGpu(MigDisabled("gpus[0].mig"), ""))


def fixed(gpu: Gpu, *names: str, room: bool = True) -> Planned:
    found = [places(gpu)[name] for name in names]
    instances = tuple(FixedInstance(p.profile.name, p.placement.start) for p in found)
    return Planned(DesiredGpu(Layout((), "gpus[0].mig"), "", dra=room), instances)


def names(offer: PoolOffer) -> list[str]:
    return [device.name for device in offer.devices]


def tainted(offer: PoolOffer, key: str) -> set[str]:
    return {d.name for d in offer.devices if key in {t.key for t in d.taints}}


def device(offer: PoolOffer, name: str) -> OfferedDevice:
    return next(d for d in offer.devices if d.name == name)


def touching(gpu: Gpu, mask: int) -> set[str]:
    """The devices with one of these memory slices, the whole GPU among them."""
    return {n for n, p in places(gpu).items() if p.placement.mask & mask} | {WHOLE_GPU}


# --- order ----------------------------------------------------------------------------------------


def test_order_of_an_h100() -> None:
    """Small profiles first, of each the highest slices, the GPU last, however NVML has them."""
    offer = pool_offer(card("h100-80gb"), DYNAMIC)
    assert offer.pool == f"{NODE}/gpu-h100-80gb"
    assert names(offer) == [
        *(f"mig-1g-10gb-{n}" for n in range(6, -1, -1)),
        *(f"mig-1g-10gb-me-{n}" for n in range(6, -1, -1)),
        *(f"mig-1g-20gb-{n}" for n in (6, 4, 2, 0)),
        *(f"mig-2g-20gb-{n}" for n in (4, 2, 0)),
        *(f"mig-3g-40gb-{n}" for n in (4, 0)),
        "mig-4g-40gb-0",
        "mig-7g-80gb-0",
        "gpu",
    ]
    turned = replace(card("h100-80gb"), profiles=card("h100-80gb").profiles[::-1])
    assert names(pool_offer(turned, DYNAMIC)) == names(offer)


def test_fixed_devices_come_first_of_their_profile() -> None:
    """They are there already, and take no room that is free."""
    gpu = card("h100-80gb")
    offer = pool_offer(gpu, replace(DYNAMIC, rules=GpuRules(planned=fixed(gpu, "mig-1g-10gb-2"))))
    assert names(offer)[:3] == ["mig-1g-10gb-2", "mig-1g-10gb-6", "mig-1g-10gb-5"]


# --- taints ---------------------------------------------------------------------------------------


def test_unhealthy_slices() -> None:
    """Devices that touch one are tainted, the others are not; it ends when the GPU is well."""
    gpu = card("h100-80gb")
    sick = replace(gpu, health_limits=HealthLimits(slices=0b1001))
    offer = pool_offer(sick, DYNAMIC)
    assert tainted(offer, UNHEALTHY) == touching(gpu, 0b1001)
    assert device(offer, "mig-1g-10gb-3").taints == (Taint(UNHEALTHY, NOON),)
    later = replace(DYNAMIC, now=NOON + 60, previous=offer)
    again = pool_offer(sick, later)
    assert again == offer  # since when it is so stays
    assert not tainted(pool_offer(gpu, later), UNHEALTHY)


@pytest.mark.parametrize("access", [Access.UNKNOWN, Access.LOST])
def test_a_gpu_that_does_not_answer(access: Access) -> None:
    """What was published stays, tainted, since nothing is known; what is on its way out goes."""
    gpu = card("h100-80gb")
    first = pool_offer(gpu, replace(DYNAMIC, rules=GpuRules(planned=fixed(gpu, "mig-1g-10gb-0"))))
    second = pool_offer(
        gpu, replace(DYNAMIC, rules=GpuRules(planned=fixed(gpu, "mig-1g-10gb-1")), previous=first)
    )
    gone = replace(gpu, access=access, access_reason="it hangs", profiles=(), instances=())
    context = replace(DYNAMIC, now=NOON + 60, previous=second)
    silent = pool_offer(gone, context)
    assert set(names(silent)) == set(names(second))
    assert silent.totals == second.totals
    assert silent.reason is not None
    assert silent.reason.message == f"the driver does not answer for {gpu.title}: it hangs"
    assert silent.reason.gpu == gpu.uuid
    assert tainted(silent, UNHEALTHY) == set(names(second))
    assert tainted(silent, WITHDRAWN) == tainted(second, WITHDRAWN)
    later = pool_offer(gone, replace(context, now=NOON + WITHDRAWAL, previous=silent))
    assert set(names(later)) == set(names(second)) - tainted(second, WITHDRAWN)
    assert pool_offer(gone, DYNAMIC).devices == ()


# --- withdrawal -----------------------------------------------------------------------------------


def test_a_clock_that_was_put_back() -> None:
    """A withdrawal never takes more than ten minutes from now."""
    gpu = card("h100-80gb")
    context = replace(DYNAMIC, rules=GpuRules(planned=DISABLED))
    offer = pool_offer(gpu, replace(context, previous=pool_offer(gpu, DYNAMIC)))
    earlier = pool_offer(gpu, replace(context, previous=offer, now=NOON - 86_400))
    assert earlier.due == NOON - 86_400 + WITHDRAWAL


# --- what claims hold -----------------------------------------------------------------------------


@pytest.mark.parametrize("board", KINDS)
def test_a_device_with_a_record_never_changes(board: str) -> None:
    """Whatever becomes of plan, mode, driver and health: but for its taints it stays as it was."""
    gpu = card(board)
    first = pool_offer(gpu, DYNAMIC)
    held = max(legal_sets(board), key=lambda devices: (len(devices), sorted(devices)))
    other = replace(
        gpu, numa_node=3, health_limits=HealthLimits(whole=True), profiles=gpu.profiles[:2]
    )
    changes = [
        replace(DYNAMIC, rules=GpuRules(planned=DISABLED)),
        replace(DYNAMIC, rules=GpuRules(planned=fixed(gpu, min(held), room=False))),
        replace(DYNAMIC, rules=GpuRules(Mode.STATIC)),
        replace(DYNAMIC, rules=GpuRules(Mode.OFF)),
        replace(DYNAMIC, facts=GpuFacts("999.0", "99.0", "Other", "pci0000:ff")),
    ]
    for state in (gpu, mig_off(gpu), other, replace(gpu, access=Access.LOST, profiles=())):
        offer = first
        for step, change in enumerate(changes):
            now = NOON + step * (WITHDRAWAL + 1)
            offer = pool_offer(state, replace(change, held=held, previous=offer, now=now))
            for name in held:
                assert replace(device(offer, name), taints=()) == device(first, name)
            assert all(d.consumes.keys() <= offer.totals.keys() for d in offer.devices)


def test_held_devices_come_back_when_slices_were_lost() -> None:
    """Without anything published, a held device is published as the mode has it."""
    gpu = card("h100-80gb")
    held = frozenset({"mig-3g-40gb-4", "mig-not-of-this-card-0"})
    offer = pool_offer(gpu, replace(DYNAMIC, rules=GpuRules(planned=DISABLED), held=held))
    assert names(offer) == ["mig-3g-40gb-4", "gpu"]
    assert (
        device(offer, "mig-3g-40gb-4").consumes
        == device(pool_offer(gpu, DYNAMIC), "mig-3g-40gb-4").consumes
    )


# --- a node over time -----------------------------------------------------------------------------


H100 = replace(card("h100-80gb"), uuid="GPU-1")
POOL = pool_name(NODE, H100.uuid)
GOAL = wanted(H100, [("3g.40gb", 1)])


def make(
    offers: NodeOffers,
    *gpus: Gpu,
    goal: DesiredGpu | None = None,
    records: Sequence[ClaimRecord] = (),
    now: int = NOON,
) -> dict[str, PoolOffer]:
    goals = {H100.uuid: goal} if goal else {}
    facts = {H100.uuid: GpuFacts("580.65.06")}
    made = offers.make(gpus, goals, records, now=now, facts=facts)
    return {offer.pool: offer for offer in made}


def published(*offers: PoolOffer) -> list[PoolOffer]:
    node = NodeReference(NODE, "11111111-2222-3333-4444-555555555555")
    read = [read_offer(resource_slices(offer, node, 7)) for offer in offers]
    return [offer for offer in read if offer]


def names_in(offer: PoolOffer) -> set[str]:
    return {device.name for device in offer.devices}


def using(device: str) -> ClaimRecord:
    return record(mig_device(gpu=H100.uuid, result=mig_result(pool=POOL, device=device)))


def test_a_withdrawal_goes_on_after_a_restart() -> None:
    """The next agent reads what is published, and withdraws when the ten minutes are over."""
    first = NodeOffers(NODE, Mode.DYNAMIC)
    before = make(first, H100)[POOL]
    there = with_devices(H100, ["mig-3g-40gb-4"])
    withdrawing = make(first, there, goal=GOAL)[POOL]
    assert names_in(withdrawing) == names_in(before)
    gone = tainted(withdrawing, WITHDRAWN)
    assert {"gpu", "mig-7g-80gb-0", "mig-1g-10gb-5"} <= gone
    second = NodeOffers(NODE, Mode.DYNAMIC)
    second.continue_from(published(withdrawing))
    almost = make(second, there, goal=GOAL, now=NOON + WITHDRAWAL - 1)[POOL]
    assert almost == withdrawing
    assert (
        names_in(make(second, there, goal=GOAL, now=NOON + WITHDRAWAL)[POOL])
        == names_in(before) - gone
    )


def test_a_gpu_that_is_gone() -> None:
    """Its devices are tainted and withdrawn ten minutes later, but for what claims hold."""
    offers = NodeOffers(NODE, Mode.DYNAMIC)
    offers.continue_from(published(make(NodeOffers(NODE, Mode.DYNAMIC), H100)[POOL]))
    held = using("mig-1g-10gb-5")
    found = make(offers, records=[held])[POOL]
    assert tainted(found, WITHDRAWN) == tainted(found, UNHEALTHY) == names_in(found)
    later = make(offers, records=[held], now=NOON + WITHDRAWAL)[POOL]
    assert names_in(later) == {"mig-1g-10gb-5"}
    assert make(offers, now=NOON + WITHDRAWAL)[POOL].devices == ()
    assert make(offers, now=NOON + WITHDRAWAL) == {}


def test_what_a_monitor_looks_at() -> None:
    """It is offered in another way at once, for monitors never end; and it stays for them."""
    first = make(NodeOffers(NODE, Mode.DYNAMIC, share="memory"), H100)[POOL]
    seen = [record(whole_device(H100.uuid, admin_access=True, pool=POOL))]
    offers = NodeOffers(NODE, Mode.DYNAMIC)
    offers.continue_from(published(first))
    now = make(offers, H100, records=seen)[POOL]
    assert device(now, WHOLE_GPU) == device(make(offers, H100)[POOL], WHOLE_GPU)
    make(offers, H100, goal=GOAL, records=seen)
    later = make(offers, H100, goal=GOAL, records=seen, now=NOON + WITHDRAWAL)[POOL]
    assert [t.key for t in device(later, WHOLE_GPU).taints] == [WITHDRAWN]


def test_another_program_hands_out_the_gpus() -> None:
    """What is offered is withdrawn, and what claims hold stays; it comes back when that ends."""
    offers, held = NodeOffers(NODE, Mode.DYNAMIC), using("mig-2g-20gb-0")
    before = make(offers, H100, records=[held])[POOL]
    offers.closed = "NVIDIA's DRA driver is here"
    closed = make(offers, H100, records=[held])[POOL]
    assert tainted(closed, WITHDRAWN) == names_in(before)
    assert offers.rules(H100, {}, ()).closed == "NVIDIA's DRA driver is here"
    later = make(offers, H100, records=[held], now=NOON + WITHDRAWAL)[POOL]
    assert names_in(later) == {"mig-2g-20gb-0"}
    assert later.due is None  # it waits for the claim, not for a time
    offers.closed = ""
    assert make(offers, H100, records=[held], now=NOON + WITHDRAWAL)[POOL] == before
    never = NodeOffers(NODE, Mode.DYNAMIC)
    never.closed = "a device plugin is here"
    assert make(never, H100)[POOL].devices == ()


def test_a_server_without_taints() -> None:
    """What would be tainted is not published at all, since the taint would be lost."""
    offers, held = NodeOffers(NODE, Mode.STATIC), using("mig-3g-40gb-4")
    there = with_devices(H100, ["mig-3g-40gb-4"])
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
    offers, other = NodeOffers(NODE, Mode.DYNAMIC), replace(H100, uuid="GPU-2", index=1)
    damaged = UnreadableRecord(Path("/claims/x.json"), "x", "it is cut off", frozenset({H100.uuid}))
    held_back, free = offers.make([H100, other], {}, (), now=NOON, unreadable=[damaged])
    assert tainted(held_back, OCCUPIED) == names_in(held_back)
    assert held_back.reason == Problem.from_error(Code.STATE_FILE, damaged.error, gpu=H100.uuid)
    assert not tainted(free, OCCUPIED)
    anywhere = replace(damaged, gpus=None)
    both = offers.make([H100, other], {}, (), now=NOON, unreadable=[anywhere])
    assert all(tainted(offer, OCCUPIED) == names_in(offer) for offer in both)
    assert not any(tainted(o, OCCUPIED) for o in offers.make([H100, other], {}, (), now=NOON))


def test_goals_are_those_of_the_plan_in_force() -> None:
    """By UUID; a GPU that no plan names has none."""
    goal = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
    node = ObservedNode((H100, replace(H100, uuid="GPU-2", index=1)))
    assert goals_of(plan(DesiredNode({H100.uuid: goal}), node)) == {H100.uuid: goal}
    assert goals_of(None) == {}
