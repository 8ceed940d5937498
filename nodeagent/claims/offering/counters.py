"""The counters with which a scheduler finds out which devices of a GPU can be there together.

One set for each GPU, with as few counters as are exact:

- `memory-slice-0` and so on, 1 of each. Where placements come in steps of several memory slices,
  a step is one counter.
- `me`, the media extensions, which one GPU instance of a card can have. Drivers report it as the
  optical flow engine (OFA); a profile named `+me` has it, whatever its figures.
- `decoders`, `encoders` or `jpeg-engines`, where part of the card can take them all (`+me.all`).

A device takes the slices of its placement and its engines; the whole GPU takes all there is. All
of it is derived from what the driver reports of the card, and `mismatch` compares the outcome with
the planner's own rule, set by set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, reduce
from math import gcd
from operator import or_, sub

from nodeagent.claims.names import DevicePlace, places
from nodeagent.plan.layouts import Card
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Gpu, GpuInstance, GpuInstanceProfile
from nodeagent.structs import Struct, replace

# Cards have at most 2,319 legal sets; a card with very many more is not enumerated at all.
_MAX_SETS = 20_000

Amounts = Mapping[str, int]  # by counter; a counter that is not in it is not touched


class CounterScheme(Struct, frozen=True):
    """The counters of one kind of card.

    `step` is how many memory slices one counter stands for. `engines` has the amounts that a
    profile takes beside its slices, by the profile's name.
    """

    totals: Amounts
    step: int
    engines: Mapping[str, Amounts]

    @classmethod
    def of(cls, gpu: Gpu) -> CounterScheme:
        return _scheme(gpu.profiles)

    def consumption(self, place: DevicePlace) -> dict[str, int]:
        """What the MIG device takes."""
        return self._slices(place.placement.mask) | dict(self.engines[place.profile.name])

    def taken_by(self, instance: GpuInstance) -> dict[str, int]:
        """What a GPU instance takes, which may be of a kind that the driver does not list."""
        engines = self.engines.get(instance.profile, {})
        return self._slices(instance.placement.mask) | dict(engines)

    def left(self, taken: Iterable[Amounts]) -> dict[str, int]:
        """The totals without that; below 0 where it is more than there is."""
        left = dict(self.totals)
        for amounts in taken:
            for counter, amount in amounts.items():
                left[counter] = left.get(counter, 0) - amount
        return left

    def _slices(self, mask: int) -> dict[str, int]:
        part = (1 << self.step) - 1
        count = -(-mask.bit_length() // self.step)
        return {_slice(n): 1 for n in range(count) if mask >> n * self.step & part}


def fits(amounts: Amounts, left: Amounts) -> bool:
    """Whether what is left is enough for it."""
    return all(left.get(counter, 0) >= amount for counter, amount in amounts.items())


def _slice(number: int) -> str:
    return f"memory-slice-{number}"


@lru_cache(maxsize=64)
def _scheme(profiles: tuple[GpuInstanceProfile, ...]) -> CounterScheme:
    placements = [placement for profile in profiles for placement in profile.placements]
    step = gcd(*(n for p in placements for n in (p.start, p.size))) or 1
    slots = max((p.start + p.size for p in placements), default=0)
    totals = {_slice(n): 1 for n in range(slots // step)}
    engines: dict[str, dict[str, int]] = {profile.name: {} for profile in profiles}
    counted: list[dict[str, int]] = []
    for counter, needs in _engine_needs(profiles).items():
        total = max((_most(p) * needs[p.name] for p in profiles), default=0)
        exhausted_by_part = any(
            needs[p.name] == total and placement.size < slots
            for p in profiles
            for placement in p.placements
        )
        # Counters that always have the same value say the same.
        if total and exhausted_by_part and needs not in counted:
            counted.append(needs)
            totals[counter] = total
            for name, need in needs.items():
                if need:
                    engines[name][counter] = need
    return CounterScheme(totals, step, engines)


def _engine_needs(profiles: Sequence[GpuInstanceProfile]) -> dict[str, dict[str, int]]:
    """By counter and profile. Copy engines are shared when they run short, and limit nothing."""
    return {
        "me": {p.name: max(p.engines.ofa, _media_extensions(p.name)) for p in profiles},
        "decoders": {p.name: p.engines.decoder for p in profiles},
        "encoders": {p.name: p.engines.encoder for p in profiles},
        "jpeg-engines": {p.name: p.engines.jpeg for p in profiles},
    }


def _media_extensions(profile: str) -> int:
    """By its name: `+me` and `+me.all` have them."""
    kinds = {a.partition(".")[0] for a in ProfileName.parse(profile).attributes}
    return 1 if "+me" in kinds else 0


def _most(profile: GpuInstanceProfile) -> int:
    """How many of it the card surely has engines for: of a plain profile one at every place."""
    return 1 if ProfileName.parse(profile.name).attributes else len(profile.placements)


# --- the self-check -------------------------------------------------------------------------------


def mismatch(gpu: Gpu, pinned: frozenset[str] = frozenset()) -> str:
    """Why counters would not say exactly which devices can be there together; "" when they do.

    `pinned` are devices, by name, that are on the GPU in any case: the sets are then those of the
    devices that fit beside them, whether the scheduler counts the pinned ones or not. Some
    15 ms for each kind of card and each `pinned`, once.
    """
    # Those of compute instances, which are learned one after the other, change nothing of it.
    profiles = tuple(replace(profile, compute=()) for profile in gpu.profiles)
    return _mismatch(profiles, gpu.compute_capability, pinned)


class _Candidate(Struct, frozen=True):
    """A device as the comparison needs it: `index` of its profile in the planner's table, memory
    slices as bits, and what it takes of each counter in the order of the totals.
    """

    name: str
    profile: str
    index: int
    mask: int
    needs: tuple[int, ...]


@lru_cache(maxsize=64)
def _mismatch(
    profiles: tuple[GpuInstanceProfile, ...],
    compute_capability: tuple[int, int],
    pinned: frozenset[str],
) -> str:
    gpu = Gpu(0, "", compute_capability=compute_capability, profiles=profiles)
    known, scheme, card = places(gpu), CounterScheme.of(gpu), Card.of(gpu)
    if len(known) != sum(len(profile.placements) for profile in profiles):
        return "two of its devices would have the same name"
    there = [place for name, place in known.items() if name in pinned]
    beside = tuple(place.profile.name for place in there)
    masks = [place.placement.mask for place in there]
    occupied = reduce(or_, masks, 0)
    if card.spare(beside) is None or occupied != sum(masks):
        return f"the planner does not allow {' + '.join(place.name for place in there)}"
    left = scheme.left(scheme.consumption(place) for place in there)
    index = {name: number for number, name in enumerate(card.profiles)}
    candidates = []
    for name, place in known.items():
        takes = scheme.consumption(place)
        if name not in pinned and fits(takes, left):
            profile, mask = place.profile.name, place.placement.mask
            needs = tuple(takes.get(counter, 0) for counter in scheme.totals)
            candidates.append(_Candidate(name, profile, index[profile], mask, needs))
    return _compare(card, candidates, tuple(scheme.totals.values()), occupied, beside)


def _compare(
    card: Card,
    candidates: Sequence[_Candidate],
    totals: tuple[int, ...],
    occupied: int,
    beside: tuple[str, ...],
) -> str:
    """Grows the sets on which counters and planner agree, by one device each time.

    Every part of a legal set is legal, and of a feasible one feasible. So where the two differ at
    all, they differ on a set of which every part is both.
    """

    @cache
    def spare(names: tuple[str, ...]) -> tuple[int, ...]:
        return card.spare((*beside, *names)) or (0,) * len(card.profiles)

    sets = 0
    open_sets: list[tuple[tuple[_Candidate, ...], Sequence[_Candidate], int, tuple[int, ...]]]
    open_sets = [((), candidates, occupied, totals)]
    while open_sets:
        chosen, later, taken, left = open_sets.pop()
        room = spare(tuple(sorted(one.profile for one in chosen)))
        joined = []
        for one in later:
            rest = tuple(map(sub, left, one.needs))
            legal = not one.mask & taken and room[one.index] > 0
            feasible = min(rest, default=0) >= 0
            if legal is not feasible:
                names = " + ".join(device.name for device in (*chosen, one))
                verdict = "allow" if feasible else "refuse"
                return f"its counters {verdict} {names}, and the planner does not"
            if legal:
                joined.append((one, rest))
        sets += len(joined)
        if sets > _MAX_SETS:
            return f"it can have more than {_MAX_SETS} different sets of devices"
        # What cannot join a set can join no larger one.
        rests = [one for one, _ in joined]
        open_sets += [
            ((*chosen, one), rests[number + 1 :], taken | one.mask, rest)
            for number, (one, rest) in enumerate(joined)
        ]
    return ""
