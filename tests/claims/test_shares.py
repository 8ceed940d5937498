"""MPS shares of a GPU: which GPUs offer them, beside what, and which claims may have them."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.model import ClaimRecord, ClaimRefused
from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.counters import CounterScheme
from nodeagent.claims.offering.gpu_rules import (
    MAX_SHARES,
    GpuRules,
    Planned,
)
from nodeagent.claims.offering.pool_offer import WITHDRAWN, OfferContext, PoolOffer, pool_offer
from nodeagent.claims.serving.admission import require_admission
from nodeagent.plan.desired import MigDisabled
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import replace
from tests.claims.boards import NODE, mig_off
from tests.claims.samples import (
    allocation,
    claim_json,
    config_json,
    device_config,
    record,
    result_json,
    whole_device,
)
from tests.plan.cards import card
from tests.plan.daemons import A, B

GIB = 1 << 30
SHARE = 8 * GIB
L40S, T4, H100 = card("l40s"), card("t4"), mig_off(card("h100-80gb"))
DISABLED = Planned(MigDisabled("gpus[0].mig"), path="gpus[0]")
SHARED = OfferContext(NODE, GpuRules(share=SHARE), 0)
Json = dict[str, Any]


def names(offer: PoolOffer) -> list[str]:
    """In the order in which they are published."""
    return [device.name for device in offer.devices]


def shares(count: int, size: str = "8gi") -> list[str]:
    """The first ones of a GPU."""
    return [f"mps-{size}-{number}" for number in range(count)]


def consumed(offer: PoolOffer) -> dict[str, dict[str, int]]:
    """What each device takes from the counters."""
    return {device.name: dict(device.consumes) for device in offer.devices}


# --- what is offered ------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "count"), [(T4, 1), (L40S, 5)])
def test_a_gpu_without_mig(gpu: Gpu, count: int) -> None:
    """It is offered in as many as its memory holds, and last as a whole; by the one counter of its
    memory only one of the two can be allocated.
    """
    offer = pool_offer(gpu, SHARED)
    assert names(offer) == [*shares(count), WHOLE_GPU]
    assert offer.totals == {"memory": gpu.memory}
    taken = consumed(offer)
    assert taken.pop(WHOLE_GPU) == {"memory": gpu.memory}
    assert taken == {name: {"memory": SHARE} for name in shares(count)}


def test_a_gpu_with_mig_that_the_plan_keeps_outside_it() -> None:
    """Its slices are all the whole GPU's; shares take none."""
    offer = pool_offer(H100, replace(SHARED, rules=GpuRules(planned=DISABLED, share=SHARE)))
    assert names(offer) == [*shares(9), WHOLE_GPU]
    totals = {**CounterScheme.of(H100).totals, "memory": H100.memory}
    assert offer.totals == consumed(offer)[WHOLE_GPU] == totals


def test_no_more_shares_than_a_daemon_has_clients() -> None:
    """However small they are."""
    offer = pool_offer(L40S, replace(SHARED, rules=GpuRules(share=GIB // 2)))
    assert names(offer) == [*shares(MAX_SHARES, "512mi"), WHOLE_GPU]


# --- beside what claims have ----------------------------------------------------------------------


def held(gpu: Gpu, context: OfferContext, *devices: str) -> PoolOffer:
    """What is offered after these were claimed."""
    first = pool_offer(gpu, context)
    return pool_offer(gpu, replace(context, previous=first, held=frozenset(devices)))


def later(gpu: Gpu, context: OfferContext, before: PoolOffer, *devices: str) -> PoolOffer:
    """What is offered when the withdrawals are over that begin with this context."""
    changed = replace(context, held=frozenset(devices), previous=before)
    between = pool_offer(gpu, changed)
    return pool_offer(gpu, replace(changed, now=context.now + 600, previous=between))


def test_another_size_beside_claims() -> None:
    """They keep their shares, and the new ones are those that have no memory in common with them;
    together they are no more than there is.
    """
    before = held(L40S, SHARED, "mps-8gi-1")  # from 8 to 16 GiB
    offer = later(L40S, replace(SHARED, rules=GpuRules(share=12 * GIB)), before, "mps-8gi-1")
    assert names(offer) == ["mps-8gi-1", "mps-12gi-2", WHOLE_GPU]  # 12gi-0 and 12gi-1 touch it
    assert WITHDRAWN in {t.key for d in offer.devices for t in d.taints if d.name == "mps-8gi-1"}
    taken = consumed(offer)
    assert taken["mps-8gi-1"]["memory"] + taken["mps-12gi-2"]["memory"] <= offer.totals["memory"]


def test_a_share_excludes_the_whole_when_the_setting_is_gone() -> None:
    """A scheduler still has to know it."""
    before = held(L40S, SHARED, "mps-8gi-0")
    offer = later(L40S, replace(SHARED, rules=GpuRules(share=0)), before, "mps-8gi-0")
    assert consumed(offer) == {
        "mps-8gi-0": {"memory": SHARE},
        WHOLE_GPU: {"memory": L40S.memory},
    }


def test_a_share_excludes_the_parts_when_the_plan_is_gone() -> None:
    """No MIG device is offered on that GPU until it is released."""
    planned = replace(SHARED, rules=GpuRules(planned=DISABLED, share=SHARE))
    before = held(H100, planned, "mps-8gi-0")
    offer = later(H100, SHARED, before, "mps-8gi-0")
    assert names(offer) == ["mps-8gi-0", WHOLE_GPU]
    assert consumed(offer)[WHOLE_GPU]["memory"] == H100.memory
    assert set(names(pool_offer(H100, replace(SHARED, previous=offer)))) >= set(places(H100))


def test_a_whole_gpu_that_was_claimed_before_there_were_shares() -> None:
    """It takes from no counter of memory and cannot be changed, so that there are none yet."""
    before = held(L40S, replace(SHARED, rules=GpuRules(share=0)), WHOLE_GPU)
    offer = pool_offer(L40S, replace(SHARED, held=frozenset({WHOLE_GPU}), previous=before))
    assert names(offer) == [WHOLE_GPU]
    assert names(pool_offer(L40S, replace(SHARED, previous=offer))) == [*shares(5), WHOLE_GPU]


def test_slices_that_were_lost() -> None:
    """What is held is published as it was, also when the setting is gone by now."""
    for device in ("mps-8gi-3", WHOLE_GPU):
        before = held(L40S, SHARED, device)
        assert pool_offer(L40S, replace(SHARED, held=frozenset({device}))) == before
    unset = pool_offer(
        L40S, replace(SHARED, rules=GpuRules(share=0), held=frozenset({"mps-8gi-3"}))
    )
    assert consumed(unset) == {"mps-8gi-3": {"memory": SHARE}, WHOLE_GPU: {"memory": L40S.memory}}
    gone = Gpu(-1, L40S.uuid, access=Access.LOST)
    assert pool_offer(gone, replace(SHARED, held=frozenset({"mps-8gi-3"}))).devices == ()


# --- who may have one -----------------------------------------------------------------------------


def share_of(device: str, mps: WantedMps = A, **changes: Any) -> ClaimRecord:
    """A claim of that share of an L40S."""
    return record(whole_device(L40S.uuid, mps, device=device), **changes)


OTHER: Json = {"uid": "2", "name": "other"}


def test_shares_beside_each_other() -> None:
    """Any but the same one, of another size what has no memory in common; nothing beside the GPU as
    a whole.
    """
    mine = share_of("mps-8gi-0")
    for device in ("mps-8gi-1", "mps-12gi-1"):
        require_admission(mine, L40S, [share_of(device, **OTHER)], ())
    for device in ("mps-8gi-0", "mps-12gi-0", WHOLE_GPU):
        with pytest.raises(ClaimRefused, match=rf"is held: {device} of claim team/other"):
            require_admission(mine, L40S, [share_of(device, **OTHER)], ())


def test_one_daemon_for_all_shares() -> None:
    """So claims that want it otherwise are refused, and not those of another GPU."""
    groups = replace(A, account=replace(A.account, groups=(7,)))
    stricter = replace(A, sharing=replace(A.sharing, enforce="terminate"))
    other = share_of("mps-8gi-1", **OTHER)
    for unlike in (groups, stricter):
        with pytest.raises(ClaimRefused, match=r"another enforce.* than claim team/other has"):
            require_admission(share_of("mps-8gi-0", unlike), L40S, [other], ())
    require_admission(share_of("mps-8gi-0", B), L40S, [other], ())
    elsewhere = record(whole_device("GPU-2", A, device="mps-8gi-1"), uid="2")
    require_admission(share_of("mps-8gi-0", stricter), L40S, [elsewhere], ())


def test_a_share_and_its_configuration() -> None:
    """It takes no time slice, not even the default one, and a program is a client of one daemon."""
    share = result_json(device="mps-8gi-0")
    turns = config_json(device_config(timeSlice="default"))
    with pytest.raises(ClaimRefused, match="timeSlice on mps-8gi-0, which is shared by MPS"):
        allocation(claim_json(share, config=[turns]))
    two = (share, result_json(device="mps-8gi-1"))
    with pytest.raises(ClaimRefused, match="request gpu has 2 devices with MPS"):
        allocation(claim_json(*two))
