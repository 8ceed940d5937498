"""What holds for every offer: any card, any layout, plans, claims, health and time."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.claims.names import WHOLE_GPU, places
from nodeagent.claims.offering.counters import Amounts, CounterScheme, fits
from nodeagent.claims.offering.gpu_rules import FixedInstance, GpuRules, Mode, Planned
from nodeagent.claims.offering.pool_offer import (
    OCCUPIED,
    WITHDRAWAL,
    WITHDRAWN,
    OfferContext,
    PoolOffer,
    pool_offer,
)
from nodeagent.claims.offering.resource_slices import NodeReference, read_offer, resource_slices
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, SharedBy
from nodeagent.plan.observed import Access, Gpu, HealthLimits
from nodeagent.structs import replace
from tests.claims.boards import KINDS, NODE, DeviceSet, legal_sets, mig_off, with_devices
from tests.claims.slice_limits import check_slices
from tests.plan.cards import card

START = 1_800_000_000
NODE_REFERENCE = NodeReference(NODE, "uid")
SETS = {board: sorted(legal_sets(board), key=sorted) for board in KINDS}


@st.composite
def states(draw: st.DrawFn, board: str) -> tuple[Gpu, DeviceSet, DeviceSet]:
    """The GPU with a legal set of instances, of which some are planned and some are claimed."""
    there = sorted(draw(st.sampled_from(SETS[board])))
    gpu = with_devices(card(board), there)
    whose = {name: draw(st.sampled_from(["plan", "claim", "foreign"])) for name in there}
    fixed = frozenset(name for name in there if whose[name] == "plan")
    held = frozenset(name for name in there if whose[name] == "claim")
    if draw(st.integers(0, 9)) == 0:
        gpu, held = mig_off(gpu), frozenset({WHOLE_GPU}) if draw(st.booleans()) else frozenset()
    limits = HealthLimits(slices=draw(st.sampled_from([0, 0, 1, 0b110000])))
    access = draw(st.sampled_from([Access.OK] * 5 + [Access.UNKNOWN]))
    return replace(gpu, health_limits=limits, access=access), fixed, held


def _planned(gpu: Gpu, kind: str, fixed: DeviceSet) -> Planned | None:
    instances = tuple(
        FixedInstance(places(gpu)[name].profile.name, places(gpu)[name].placement.start)
        for name in sorted(fixed)
    )
    plans = {
        "none": None,
        "kept": Planned(DesiredGpu(None, "")),
        "off": Planned(DesiredGpu(MigDisabled(""), "")),
        "on": Planned(DesiredGpu(MigEnabled(""), "")),
        "layout": Planned(DesiredGpu(Layout((), ""), ""), instances),
        "layout alone": Planned(DesiredGpu(Layout((), ""), "", dra=False), instances),
    }
    return plans[kind]


KINDS_OF_PLAN = ("none", "kept", "off", "on", "layout", "layout", "layout alone")


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_over_time(data: st.DataObject) -> None:
    """Step by step: held devices stay as they were, nothing goes without ten minutes' notice, and
    what is published is what the API server takes and reads back as itself.
    """
    board = data.draw(st.sampled_from(KINDS))
    now, offer = START, None
    share: SharedBy = data.draw(st.sampled_from(["off", "memory", 4, "time"]))
    for _ in range(data.draw(st.integers(1, 5))):
        gpu, fixed, held = data.draw(states(board))
        plan = _planned(gpu, data.draw(st.sampled_from(KINDS_OF_PLAN)), fixed)
        mode = data.draw(st.sampled_from([Mode.DYNAMIC, Mode.DYNAMIC, Mode.STATIC, Mode.OFF]))
        now += data.draw(st.sampled_from([0, 1, WITHDRAWAL - 1, WITHDRAWAL]))
        rules = GpuRules(mode, plan, share=share, share_mig=share)
        context = OfferContext(NODE, rules, now, held, offer)
        following = pool_offer(gpu, context)
        _check_transition(offer, following, context)
        _check_content(gpu, following)
        assert pool_offer(gpu, replace(context, previous=following)) == following
        offer = following


def _check_transition(before: PoolOffer | None, after: PoolOffer, context: OfferContext) -> None:
    published = {device.name: device for device in after.devices}
    for device in before.devices if before else ():
        if device.name in context.held:
            assert replace(published[device.name], taints=()) == replace(device, taints=())
        elif device.name not in published:
            (since,) = (t.added for t in device.taints if t.key == WITHDRAWN)
            assert since + WITHDRAWAL <= context.now
    assert after.due is None or after.due > context.now


def _check_content(gpu: Gpu, offer: PoolOffer) -> None:
    names = [device.name for device in offer.devices]
    assert len(set(names)) == len(names)
    assert WHOLE_GPU not in names[:-1]
    assert all(d.consumes.get(c, 0) <= n for d in offer.devices for c, n in offer.totals.items())
    slices = resource_slices(offer, NODE_REFERENCE, 1)
    check_slices(slices)
    read = read_offer(slices)
    assert read == (offer if offer.devices else None)
    assert gpu.uuid.lower() in offer.pool


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_what_is_allocated_can_be_made(data: st.DataObject) -> None:
    """Whatever a scheduler takes by counters, beside what is planned, claimed and foreign: the
    simulator allows it. And what it allows beside these, the offer has.
    """
    board = data.draw(st.sampled_from(KINDS))
    gpu, fixed, held = data.draw(states(board))
    gpu = replace(gpu, access=Access.OK, mig=card(board).mig, health_limits=HealthLimits())
    held -= {WHOLE_GPU}
    plan = _planned(gpu, "layout", fixed)
    offer = pool_offer(gpu, OfferContext(NODE, GpuRules(planned=plan), START, held))
    there = frozenset(
        name
        for name, place in places(gpu).items()
        for i in gpu.instances
        if (i.profile, i.placement) == (place.profile.name, place.placement)
    )
    scheme, known = CounterScheme.of(gpu), places(gpu)
    taken: list[Amounts] = [scheme.consumption(known[name]) for name in held]
    allocated = there
    seed = data.draw(st.integers(0, 1000))
    for device in random.Random(seed).sample(offer.devices, len(offer.devices)):
        usable = device.name not in there and OCCUPIED not in {t.key for t in device.taints}
        legal = allocated | {device.name} in legal_sets(board)
        counted = usable and fits(device.consumes, scheme.left(taken))
        if device.name not in there:
            assert counted is legal
        if counted:
            taken.append(device.consumes)
            allocated |= {device.name}
