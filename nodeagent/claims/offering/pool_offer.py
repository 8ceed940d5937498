"""What one GPU publishes: the devices that it offers and those that cannot go yet, with taints.

- A device that a claim has a record of stays as it was published: a scheduler counts by what is
  published now, and would hand out again what is not. Only what further claims request of it may
  change; where they are to share it in another way, or not at all, it has to be released first.
- A device that is no longer wanted is tainted first, and withdrawn ten minutes later: a claim may
  have been given it meanwhile.
- Devices on unhealthy memory slices are tainted, and so are those in whose way a GPU instance lies
  that neither the plan nor a claim has a record of, and all while nothing new may be made.
- A scheduler takes the first device that fits. Small ones come first and the whole GPU last; of one
  profile fixed ones, then those at the highest slices, which leaves the most room for large ones.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.claims.capacity import RequestPolicy
from nodeagent.claims.names import WHOLE_GPU, mig_device_name, places, pool_name
from nodeagent.claims.offering.counters import Amounts, CounterScheme, fits
from nodeagent.claims.offering.devices import SHARING, GpuFacts, OfferedDevice, Taint
from nodeagent.claims.offering.gpu_rules import GpuRules, Mode, OfferedNames, offered_names
from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace

UNHEALTHY = "gpu.nodeagent.io/unhealthy"
OCCUPIED = "gpu.nodeagent.io/occupied"
WITHDRAWN = "gpu.nodeagent.io/withdrawn"

WITHDRAWAL = 600  # seconds from the taint to the end of a device


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What is published of one GPU. `totals` are the counters', empty where no device has any.

    `reason` says why less is offered than the mode promises, if it is. At `due`, in seconds since
    1970, the next withdrawal ends; None when there is none to wait for.
    """

    pool: str
    totals: Mapping[str, int]
    devices: tuple[OfferedDevice, ...]
    reason: Problem | None = field(default=None, compare=False)
    due: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class OfferContext:
    """What an offer follows from, beside the GPU as it is observed.

    `held` are the names of this GPU's devices that claims have records of, `seen` of those that
    administrators alone look at, `shared` of those that claims have shares of. `previous` is what
    was published last; what is not in it goes without notice. `now` in seconds since 1970.
    `held_back` says why nothing new may be made on the GPU now, if that is so. Without
    `keeps_taints` the API server drops taints, so that what would have one is not published, but
    for what claims hold, and of that nothing further can be had.
    """

    node: str
    rules: GpuRules
    now: int
    held: frozenset[str] = frozenset()
    previous: PoolOffer | None = None
    facts: GpuFacts = field(default_factory=GpuFacts)
    held_back: Problem | None = None
    keeps_taints: bool = True
    shared: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    @property
    def fixed(self) -> frozenset[str]:
        """The names of the devices that a planned layout fixes."""
        return frozenset(instance.device for instance in self.rules.plan_instances)


def pool_offer(gpu: Gpu, context: OfferContext) -> PoolOffer:
    """What the GPU, of which the UUID is known, offers now."""
    previous = context.previous.devices if context.previous else ()
    before = {device.name: device for device in previous}
    held = _held_devices(gpu, context, before)
    offered, reason = _offered_devices(gpu, context, before, held)
    for name, device in held.items():
        if name in offered and _is_shared_alike(device, offered[name]):
            held[name] = replace(device, policies=offered[name].policies)
    left, stays = _left_by_foreign(gpu, context), held.keys() | context.seen
    devices: list[OfferedDevice] = []
    ends: list[int] = []
    for name, device in {**before, **offered, **held}.items():
        earlier = {t.key: t.added for t in before[name].taints} if name in before else {}
        keys = _taint_keys(gpu, device, left, context)
        if name not in offered:
            keys.append(WITHDRAWN)
        elif device.policies and not _is_shared_alike(device, offered[name]):
            keys.append(WITHDRAWN)
            reason = reason or gpu.problem(Code.IN_USE, "sharedOtherwise")
        # Since when it is tainted; not in the future, should the clock have been put back.
        now = context.now
        taints = tuple(Taint(key, min(earlier.get(key, now), now)) for key in keys)
        ended = [t.added + WITHDRAWAL for t in taints if t.key == WITHDRAWN and name not in stays]
        if any(end <= context.now for end in ended):
            continue
        if context.keeps_taints:
            ends += ended
            devices.append(replace(device, taints=taints))
        elif not taints or name in stays:
            own = _used_up(device.policies) if taints else device.policies
            devices.append(replace(device, taints=(), policies=own))
    return PoolOffer(
        pool_name(context.node, gpu.uuid),
        _totals(gpu, devices, context.previous),
        _ordered(gpu, devices, context.fixed),
        context.held_back or reason,
        min(ends, default=None),
    )


def _held_devices(
    gpu: Gpu, context: OfferContext, before: Mapping[str, OfferedDevice]
) -> dict[str, OfferedDevice]:
    """As they were published; those that are not any more, as the mode has them."""
    rules = context.rules
    counted = rules.mode is Mode.DYNAMIC and not rules.is_off
    form = OfferedNames(counted=counted)

    def shared_by(name: str) -> SharedBy:
        found = rules.shared_by(gpu, name)
        # What is consumed has to be counted until it is released.
        return "memory" if found == "off" and name in context.shared else found

    return {
        name: before.get(name) or form.device(gpu, name, context.facts, shared_by(name))
        for name in sorted(context.held)
        if name in before or name == WHOLE_GPU or name in places(gpu)
    }


def _used_up(policies: Mapping[str, RequestPolicy]) -> Mapping[str, RequestPolicy]:
    """Have every further request consume the default, all of the memory: claims have some of it."""
    return {
        name: replace(one, least=one.default, step=one.default or one.step)
        for name, one in policies.items()
    }


def _is_shared_alike(one: OfferedDevice, other: OfferedDevice) -> bool:
    """Whether claims that have them together do it in one way, so that one counts for both."""
    ways = one.attributes.get(SHARING), other.attributes.get(SHARING)
    return ways[0] == ways[1] and one.capacity == other.capacity


def _offered_devices(
    gpu: Gpu,
    context: OfferContext,
    before: Mapping[str, OfferedDevice],
    held: Mapping[str, OfferedDevice],
) -> tuple[Mapping[str, OfferedDevice], Problem | None]:
    """By name, and why they are fewer than the mode promises."""
    if not gpu.answers and not context.rules.is_off:
        # What is known of it now may be nothing at all.
        staying = {n: d for n, d in before.items() if WITHDRAWN not in (t.key for t in d.taints)}
        return staying, _silent(gpu)
    offered, rules = offered_names(gpu, context.rules, held), context.rules
    devices = {
        name: offered.device(gpu, name, context.facts, rules.shared_by(gpu, name))
        for name in offered.names
    }
    return devices, offered.reason or _not_shared(gpu, rules, offered.names)


def _not_shared(gpu: Gpu, rules: GpuRules, names: Iterable[str]) -> Problem | None:
    """Why claims do not share devices of these names that they are to share."""
    reasons = {name: rules.cannot_be_shared(gpu, name) for name in names}
    said = dict.fromkeys(
        why for name, why in reasons.items() if why and why == rules.why_not_shared(gpu, name)
    )
    return gpu.problem(Code.UNSUPPORTED, "notShared", why="; ".join(said)) if said else None


def _silent(gpu: Gpu) -> Problem:
    if gpu.access is Access.LOST:
        return gpu.problem(Code.GPU_LOST, "forClaims", why=gpu.access_reason)
    return gpu.problem(Code.GPU_UNKNOWN, "forClaims", why=gpu.access_reason)


def _totals(
    gpu: Gpu, devices: Iterable[OfferedDevice], previous: PoolOffer | None
) -> Mapping[str, int]:
    """Those of all counters that some device takes from, also by an earlier scheme."""
    needed = {counter for device in devices for counter in device.consumes}
    if not needed:
        return {}
    earlier = previous.totals if previous else {}
    kept = {name: earlier[name] for name in needed & earlier.keys()}
    return {**kept, **CounterScheme.of(gpu).totals}


# --- taints ---------------------------------------------------------------------------------------


def _left_by_foreign(gpu: Gpu, context: OfferContext) -> Amounts | None:
    """What is left of the counters by GPU instances that nothing is recorded of; None: there are
    none.
    """
    recorded = context.held | context.fixed
    foreign = [
        instance
        for instance in gpu.instances
        if mig_device_name(instance.profile, instance.placement.start) not in recorded
    ]
    scheme = CounterScheme.of(gpu)
    return scheme.left(map(scheme.taken_by, foreign)) if foreign else None


def _taint_keys(
    gpu: Gpu, device: OfferedDevice, left: Amounts | None, context: OfferContext
) -> list[str]:
    """Of the taints that the GPU's state asks for. A device of a profile that is not known (any
    more) counts as all of the GPU.
    """
    limits, place = gpu.health_limits, places(gpu).get(device.name)
    found: list[str] = []
    unhealthy = limits.whole or limits.slices & (place.placement.mask if place else -1)
    if unhealthy or not gpu.answers:
        found.append(UNHEALTHY)
    free = left is None or (place and fits(CounterScheme.of(gpu).consumption(place), left))
    if context.held_back or not free:
        found.append(OCCUPIED)
    return found


# --- order ----------------------------------------------------------------------------------------


def _ordered(
    gpu: Gpu, devices: Iterable[OfferedDevice], fixed: Collection[str]
) -> tuple[OfferedDevice, ...]:
    """As a scheduler shall try them; those of which nothing is known (any more) as they were."""
    known = places(gpu)

    def key(device: OfferedDevice) -> tuple[object, ...]:
        place = known.get(device.name)
        if place is None:
            return (device.name == WHOLE_GPU, 0)
        profile, placement = place.profile, place.placement
        size = (placement.size, profile.slices, profile.memory, profile.name)
        return (False, 1, *size, device.name not in fixed, -placement.start)

    return tuple(sorted(devices, key=key))
