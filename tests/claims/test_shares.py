"""A GPU that claims have together: which GPUs are offered so, what changes while claims have them,
and which claims may have a share.
"""

import copy
from typing import Any

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, Consumed, RequestPolicy
from nodeagent.claims.model import ClaimedDevice, ClaimHeldUp, ClaimRecord
from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.counters import CounterScheme
from nodeagent.claims.offering.devices import SHARING, OfferedDevice
from nodeagent.claims.offering.gpu_rules import FixedInstance, GpuRules, Planned, refusal
from nodeagent.claims.offering.pool_offer import WITHDRAWN, OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import (
    NodeReference,
    compare,
    read_offer,
    resource_slices,
)
from nodeagent.claims.serving.admission import require_admission
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, SharedBy
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.shares import MIB, WantedMps
from nodeagent.structs import replace
from tests.claims.boards import NODE, mig_off
from tests.claims.samples import mig_device, record, share_of_gpu, whole_device, with_goal
from tests.plan.cards import card
from tests.plan.daemons import A, B

GIB = 1 << 30
STEP = 256 * MIB
THE_GPU = frozenset({WHOLE_GPU})
L40S, T4, H100 = (
    replace(gpu, cuda_version=(13, 0))
    for gpu in (card("l40s"), card("t4"), mig_off(card("h100-80gb")))
)
LAYOUT = DesiredGpu(Layout((), "gpus[0].mig"), "")
DISABLED = Planned(DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]"))
SHARED = OfferContext(NODE, GpuRules(share="memory"), 0)


def by(share: SharedBy, **changes: Any) -> OfferContext:
    return replace(SHARED, rules=GpuRules(share=share), **changes)


def whole(offer: PoolOffer) -> OfferedDevice:
    [found] = (device for device in offer.devices if device.name == WHOLE_GPU)
    return found


def held(gpu: Gpu, before: OfferContext, now: OfferContext) -> OfferedDevice:
    """The GPU `now`, of which a claim has a share since it was offered as `before`."""
    first = pool_offer(gpu, before)
    later = replace(now, previous=first, held=THE_GPU, shared=THE_GPU)
    return whole(pool_offer(gpu, later))


def why_less(now: OfferContext, before: PoolOffer) -> str:
    later = replace(now, previous=before, held=THE_GPU, shared=THE_GPU)
    reason = pool_offer(L40S, later).reason
    return reason.message if reason else ""


def is_withdrawn(device: OfferedDevice) -> bool:
    return WITHDRAWN in {taint.key for taint in device.taints}


# --- what is offered ------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [T4, L40S, H100])
def test_amounts_of_memory_and_threads(gpu: Gpu) -> None:
    """In steps, and all of it where nothing is requested: no smaller share fits beside that."""
    found = whole(pool_offer(gpu, SHARED))
    default = gpu.memory - gpu.memory % STEP
    assert found.policies == {
        "gpu.nvidia.com/memory": RequestPolicy(default, STEP, STEP),
        "threads": RequestPolicy(0, 0, 1),
        "clients": RequestPolicy(1, 1, 1),
    }
    assert found.capacity == {"gpu.nvidia.com/memory": gpu.memory, "threads": 100, "clients": 48}
    assert default + STEP > gpu.memory
    assert Consumed(default).is_whole(gpu.memory)
    assert not Consumed(default - STEP).is_whole(gpu.memory)
    assert (found.attributes[SHARING], found.attributes["gpu.nvidia.com/type"]) == ("mps", "gpu")
    assert found.consumes == CounterScheme.of(gpu).totals


@pytest.mark.parametrize("parts", [2, 3, 7, 48])
def test_equal_parts(parts: int) -> None:
    policy = whole(pool_offer(L40S, by(parts))).policies["gpu.nvidia.com/memory"]
    assert policy.step == policy.least == L40S.memory // parts // MIB * MIB
    assert L40S.memory // policy.step == parts
    assert policy.default == parts * policy.step
    assert Consumed(policy.default).is_whole(L40S.memory)


def test_turns() -> None:
    """Nothing limits threads or clients, so that there are none to request."""
    found = whole(pool_offer(L40S, by("time")))
    assert found.attributes[SHARING] == "timeSlice"
    assert found.capacity.keys() == found.policies.keys() == {"gpu.nvidia.com/memory"}


def test_the_plan_may_say_otherwise() -> None:
    rules = GpuRules(planned=with_goal(DISABLED, share=4), share="off")
    found = whole(pool_offer(H100, replace(SHARED, rules=rules)))
    assert found.policies["gpu.nvidia.com/memory"].step == H100.memory // 4 // MIB * MIB
    divided = GpuRules(planned=Planned(LAYOUT), share="memory")
    offer = pool_offer(H100, replace(SHARED, rules=divided))
    assert not any(device.policies for device in offer.devices)


def test_mig_devices() -> None:
    """By a setting of their own, or by the plan that has them: as large as their profile, with
    places for clients in proportion to its slices; of the rest nothing is consumed.
    """
    by_plan = with_goal(DISABLED, mig=MigEnabled("gpus[0].mig"))
    for rules in (
        GpuRules(share_mig="memory"),
        GpuRules(planned=with_goal(by_plan, share="memory")),
        GpuRules(planned=by_plan, share_mig="memory", share=4),
    ):
        offer = pool_offer(H100, replace(SHARED, rules=rules))
        parts = {one.name: one for one in offer.devices if one.name != WHOLE_GPU}
        assert parts.keys() == places(H100).keys()
        for name, place in places(H100).items():
            policies, memory = dict(parts[name].policies), place.profile.memory
            default = memory - memory % STEP
            assert policies.pop(MEMORY) == RequestPolicy(default, STEP, STEP)
            assert policies.pop(CLIENTS) == RequestPolicy(1, 1, 1)
            assert set(policies.values()) == {RequestPolicy(0, 0, 1)}
            amounts = {n: amount for n, amount in parts[name].capacity.items() if amount}
            assert policies.keys() | {MEMORY, CLIENTS} == amounts.keys()
            assert parts[name].capacity[CLIENTS] == 48 * place.profile.slices // 7
            assert parts[name].attributes[SHARING] == "mps"
        assert not any(one.policies for one in offer.devices if one.name == WHOLE_GPU)
    for rules in (GpuRules(share="memory"), GpuRules(planned=with_goal(by_plan, share="off"))):
        assert not any(
            one.policies
            for one in pool_offer(H100, replace(SHARED, rules=rules)).devices
            if one.name != WHOLE_GPU
        )


def test_a_card_that_cannot_be_shared() -> None:
    """Is for one claim, and why is said; where the plan has it otherwise, it is no matter."""
    old = replace(L40S, compute_capability=(6, 1))
    small = replace(L40S, memory=8 * GIB)
    for gpu, context in ((old, SHARED), (small, by(48))):
        offer = pool_offer(gpu, context)
        assert not whole(offer).policies
        assert offer.reason
        assert "claims do not share a device as dra.share" in offer.reason.message
    assert pool_offer(old, by("time")).reason is None
    assert pool_offer(L40S, SHARED).reason is None


def test_mig_devices_that_cannot_be_shared() -> None:
    """Are for one claim each, and each profile is named once; the others are shared."""
    offer = pool_offer(H100, replace(SHARED, rules=GpuRules(share_mig=48)))
    assert offer.reason
    assert offer.reason.message.count("has too little memory for shares (48)") == 2
    assert offer.reason.message.count("1g.10gb of ") == 1
    assert offer.reason.message.count("1g.10gb+me of ") == 1
    shared = {one.name for one in offer.devices if one.policies}
    assert shared == {n for n, place in places(H100).items() if "10gb" not in place.profile.name}
    small_parts = GpuRules(share_mig=48, planned=Planned(LAYOUT))
    assert "has MIG enabled" in refusal(small_parts, H100, WHOLE_GPU)
    planned = Planned(replace(LAYOUT, dra=False), (FixedInstance("1g.10gb", 0),))
    without = replace(SHARED, rules=GpuRules(share_mig=48, planned=planned))
    assert pool_offer(H100, without).reason is None


def test_as_resource_slices() -> None:
    offer = pool_offer(T4, SHARED)
    [one] = resource_slices(offer, NodeReference(NODE, "uid"), 1)
    [device] = one["spec"]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["gpu.nvidia.com/memory"] == {
        "value": "15Gi",
        "requestPolicy": {"default": "15Gi", "validRange": {"min": "256Mi", "step": "256Mi"}},
    }
    assert device["capacity"]["threads"] == {
        "value": "100",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
    }
    assert read_offer([one]) == offer
    published_again = copy.deepcopy(one)
    without = {k: v for k, v in device.items() if k != "allowMultipleAllocations"}
    [lost] = compare(one, {**one, "spec": {**one["spec"], "devices": [without]}})
    assert str(lost).endswith("allowMultipleAllocations (feature gate DRAConsumableCapacity)")
    del device["capacity"]["threads"]["requestPolicy"]
    [lost] = compare(published_again, one)
    assert "the feature gate DRAConsumableCapacity on" in lost.remedy


# --- while claims have shares ---------------------------------------------------------------------


def test_another_size_counts_at_once() -> None:
    found = held(L40S, SHARED, by(4))
    assert found == whole(pool_offer(L40S, by(4)))
    assert not is_withdrawn(found)


@pytest.mark.parametrize("share", ["off", "time"])
def test_another_way_has_to_wait(share: SharedBy) -> None:
    """The scheduler goes on counting what is consumed, and allocates nothing new of it."""
    found = held(L40S, SHARED, by(share))
    assert replace(found, taints=()) == whole(pool_offer(L40S, SHARED))
    assert is_withdrawn(found)
    assert "takes no new claims" in why_less(by(share), pool_offer(L40S, SHARED))
    released = pool_offer(L40S, replace(by(share), previous=PoolOffer("", {}, (found,))))
    assert whole(released) == whole(pool_offer(L40S, by(share)))


def test_a_gpu_that_was_claimed_as_a_whole_before() -> None:
    """Its claim's allocation has no shareID, so that it stays for one until then."""
    first = pool_offer(L40S, by("off"))
    now = replace(SHARED, previous=first, held=frozenset({WHOLE_GPU}))
    assert pool_offer(L40S, now) == first


def test_slices_that_were_lost_when_the_setting_is_gone() -> None:
    lost = replace(by("off"), held=THE_GPU, shared=THE_GPU)
    found = whole(pool_offer(L40S, lost))
    assert found.policies == whole(pool_offer(L40S, SHARED)).policies
    assert is_withdrawn(found)


# --- who may have one -----------------------------------------------------------------------------


def claim(*devices: ClaimedDevice, name: str = "trainer") -> ClaimRecord:
    return record(*devices, uid=name.encode().hex(), name=name)


def share(gibibytes: int, threads: int = 0, clients: int = 1, mps: WantedMps | None = A) -> Any:
    return share_of_gpu(L40S.uuid, mps, consumed=Consumed(gibibytes * GIB, threads, clients))


def test_shares_that_are_there_together() -> None:
    """Up to all of the GPU's memory, threads and places; threads not requested do not count."""
    others = [claim(share(20, 60), name="one"), claim(share(10, 0, 45), name="two")]
    require_admission(claim(share(14, 40)), L40S, others, ())
    elsewhere = claim(replace(share(40, 90), gpu="GPU-2"), name="three")
    require_admission(claim(share(14, 40)), L40S, [*others, elsewhere], ())
    require_admission(claim(share(7), share(7)), L40S, others, ())


@pytest.mark.parametrize(
    ("wanted", "over"),
    [
        ((share(15),), "15Gi of GPU 0 (NVIDIA L40S), 12Mi more"),
        ((share(14, 50),), "14Gi, 50% of the threads of GPU 0 (NVIDIA L40S), 10% of the threads"),
        ((share(1, 0, 3),), "1Gi, 3 clients of GPU 0 (NVIDIA L40S), 1 client more"),
        ((share(8), share(8)), "8Gi and 8Gi of GPU 0 (NVIDIA L40S), 1036Mi more"),
    ],
)
def test_more_than_there_is(wanted: tuple[ClaimedDevice, ...], over: str) -> None:
    others = [claim(share(20, 60), name="one"), claim(share(10, 0, 45), name="two")]
    with pytest.raises(ClaimHeldUp) as refused:
        require_admission(claim(*wanted), L40S, others, ())
    assert f"claim team/trainer was allocated {over}" in refused.value.message
    assert refused.value.message.endswith(
        "than is free: claim team/one has 20Gi, 60% of the threads; claim team/two has 10Gi, 45 "
        "clients"
    )
    assert "kubectl delete pod -n team" in refused.value.remedy


def test_all_of_a_gpu_or_a_part() -> None:
    mine = claim(share(8))
    for device in (whole_device(L40S.uuid), mig_device(gpu=L40S.uuid)):
        for one, other in ((mine, claim(device, name="other")), (claim(device), mine)):
            with pytest.raises(ClaimHeldUp, match="was allocated a device that is held"):
                require_admission(one, L40S, [other], ())


def part(start: int, threads: int, *, profile: str = "2g.20gb") -> ClaimedDevice:
    place = Placement(start, 2)
    known = {"gpu": H100.uuid, "profile": profile, "placement": place, "shared": True}
    return mig_device(result=share(8, threads).result, mps=A, **known)


def test_parts_of_mig_devices() -> None:
    """What each has is counted for itself, and those that lie on one another exclude each other."""
    others = [claim(part(0, 60), name="one"), claim(part(2, 90), name="two")]
    require_admission(claim(part(0, 40), part(2, 10), part(4, 100)), H100, others, ())
    with pytest.raises(ClaimHeldUp) as refused:
        require_admission(claim(part(0, 40), part(2, 11)), H100, others, ())
    assert refused.value.message == (
        "claim team/trainer was allocated 8Gi, 11% of the threads of gpu of GPU 0 (NVIDIA H100 "
        "80GB HBM3), 1% of the threads more than is free: claim team/two has 8Gi, 90% of the "
        "threads"
    )
    with pytest.raises(ClaimHeldUp, match="it has no more") as refused:
        require_admission(claim(part(0, 90), part(0, 90)), H100, [], ())
    assert refused.value.remedy.startswith("have this one's scheduled again: ")
    for other in (share(8), part(1, 1), part(0, 1, profile="1g.20gb")):
        one = claim(replace(other, gpu=H100.uuid))
        for wanted, held in ((one, others[0]), (others[0], one)):
            with pytest.raises(ClaimHeldUp, match="was allocated a device that is held"):
                require_admission(wanted, H100, [held], ())


def test_one_daemon_for_all_shares() -> None:
    """So claims that want it otherwise are refused, and not those of another GPU."""
    groups = replace(A, account=replace(A.account, groups=(7,)))
    stricter = replace(A, sharing=replace(A.sharing, enforce="terminate"))
    other = claim(share(8), name="other")
    for unlike in (groups, stricter):
        with pytest.raises(ClaimHeldUp, match=r"another enforce.* than claim team/other has"):
            require_admission(claim(share(8, mps=unlike)), L40S, [other], ())
    with pytest.raises(ClaimHeldUp, match="is shared in another way, by MPS or by turns"):
        require_admission(claim(share(8, mps=None)), L40S, [other], ())
    require_admission(claim(share(8, mps=B)), L40S, [other], ())
    elsewhere = claim(replace(share(8), gpu="GPU-2"), name="other")
    require_admission(claim(share(8, mps=stricter)), L40S, [elsewhere], ())
