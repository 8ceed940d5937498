"""Refusals that are met both when a document is resolved and when its steps are planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layouts import Card
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.search import best_layout


def not_mig_capable(gpu: Gpu, path: str) -> Problem:
    """MIG is asked of a card that has none."""
    remedy = "name only GPUs with MIG (nodeagent profiles shows them), or select by model"
    return Problem(Code.NOT_MIG_CAPABLE, f"{gpu.title} has no MIG", remedy, gpu.uuid, path)


def does_not_fit(gpu: Gpu, wanted: Sequence[WantedInstance], path: str) -> Problem:
    """Not on this card, not even an empty one. Names the first device that is too much."""
    card = Card.of(gpu)
    order = {name: n for n, name in enumerate(card.profiles)}
    fixed_first = sorted(wanted, key=lambda w: (w.start is None, order[w.profile], -w.slices))
    fitting: list[WantedInstance] = []
    too_much = fixed_first[-1]
    for instance in fixed_first:
        if best_layout(card, [*fitting, instance], ()) is None:
            too_much = instance
            break
        fitting.append(instance)

    def name(one: WantedInstance) -> str:
        return device_name(one.profile, card.profiles[one.profile].profile.slices, one.slices)

    rest = counted(map(name, fitting)) or "nothing else"
    where = f" at slice {too_much.start}" if too_much.start is not None else ""
    message = (
        f"{counted(map(name, wanted))} cannot be on {gpu.title} together: "
        f"beside {rest} there is no room for {name(too_much)}{where}"
    )
    remedy = _alternative(card, too_much, wanted)
    return Problem(Code.DOES_NOT_FIT, message, remedy, gpu.uuid, too_much.path or path)


def _alternative(card: Card, instance: WantedInstance, wanted: Sequence[WantedInstance]) -> str:
    profile = card.profiles[instance.profile].profile
    if not profile.placements:
        return f"the driver reports no placement for a {profile.name}"
    whole = sum(1 for w in wanted if w.profile == profile.name and w.slices == profile.slices)
    if whole > profile.max_count:
        return f"the card has at most {profile.max_count} {profile.name}, wherever they lie"
    starts = ", ".join(str(p.start) for p in sorted(profile.placements))
    return (
        f"a {profile.name} takes {profile.placements[0].size} of {card.slots} memory slices and "
        f"can start at {starts}; take fewer or smaller instances"
    )


def counted(names: Iterable[str]) -> str:
    """Names for a sentence, such as `2x 1g.10gb + 3g.40gb`."""
    counts = Counter(names)
    return " + ".join(f"{n}x {name}" if n > 1 else name for name, n in counts.items())


def unhealthy_slices(gpu: Gpu, path: str) -> Problem:
    """The plan would need unhealthy memory slices."""
    bits = gpu.health_limits.slices
    slices = ", ".join(str(n) for n in range(bits.bit_length()) if bits >> n & 1)
    what = f"the plan needs unhealthy memory slices of {gpu.title} (unhealthy: {slices})"
    return unhealthy(gpu, what, path)


def unhealthy(gpu: Gpu, what: str, path: str) -> Problem:
    """Nothing new comes where the GPU is unhealthy."""
    limits = gpu.health_limits
    message = f"{what}: {limits.why}" if limits.why else what
    return Problem(Code.GPU_UNHEALTHY, message, limits.remedy, gpu.uuid, path)
