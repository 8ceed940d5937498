"""The layout to aim for: exact search over every legal placement of what is wanted.

Among the layouts that satisfy the request the one is taken that, in this order,

1. takes away the fewest devices in use (the planner refuses when that is not none),
2. takes away the fewest devices, then the fewest GPU instances,
3. stops the fewest MPS daemons, then starts or changes the fewest,
4. leaves the most room for the largest profile, then for the next one, and so on,
5. comes first in a fixed order (largest profiles first, lowest slices first).

On sick memory slices only what is there can be kept: no new GPU instance touches them, and none
that does gets another compute instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from nodeagent.plan.compute_instances import Division, Redivision, divisions, redivide
from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layout import Card
from nodeagent.plan.mps_assignment import STOP, cost_of, match
from nodeagent.plan.observed import GpuInstance
from nodeagent.plan.shares import WantedMps

_Gain = tuple[int, int, int]
_Starts = tuple[tuple[Division, int], ...]
_NOTHING: _Gain = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Placed:
    """A GPU instance of the layout aimed for; `existing` when it is there already."""

    division: Division
    start: int
    existing: GpuInstance | None
    change: Redivision


@dataclass(frozen=True, slots=True)
class Target:
    """The layout aimed for. `gone` are the GPU instances that have no place in it."""

    placed: tuple[Placed, ...]
    gone: tuple[GpuInstance, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal divisions, which are interchangeable: `count` of them at any of the `starts`."""

    division: Division
    count: int
    masks: Mapping[int, int]
    gains: Mapping[int, _Gain]
    best: _Gain


def best_layout(
    card: Card,
    wanted: Sequence[WantedInstance],
    existing: Sequence[GpuInstance],
    *,
    all_in_use: bool = False,
    sick: int = 0,
) -> Target | None:
    """The layout to aim for, or None when `wanted` cannot all be on this card at once.

    `all_in_use`: nobody can tell which instance is in use, so each of them counts. `sick`: memory
    slices as bits where nothing new may come.
    """
    best: tuple[tuple[_Gain, int, tuple[int, ...]], _Starts] | None = None
    disturbance = _disturbance(card, wanted, existing)
    for divided in _all_divisions(card, wanted):
        names = [d.profile for d in divided]
        spare = card.spare(names)
        if spare is None:
            continue
        groups = _groups(card, divided, existing, all_in_use, sick)
        rooms: dict[int, tuple[int, ...]] = {}
        floor = best[0][0] if best else None
        for gain, occupied, starts in _place(groups, floor):
            if best is not None and gain < best[0][0]:
                continue
            if occupied not in rooms:
                rooms[occupied] = card.room(occupied | sick, spare)
            score = (gain, -disturbance(starts) if disturbance else 0, rooms[occupied])
            if best is None or score > best[0]:
                best = (score, starts)
    if best is None:
        return None
    return _target(card, best[1], existing)


def _all_divisions(card: Card, wanted: Sequence[WantedInstance]) -> Iterator[tuple[Division, ...]]:
    by_profile: dict[str, list[WantedInstance]] = {}
    for instance in wanted:
        by_profile.setdefault(instance.profile, []).append(instance)
    ways = [
        tuple(divisions(card.profiles[name].profile, by_profile[name], aligned=card.aligned))
        for name in card.profiles
        if name in by_profile
    ]
    for parts in product(*ways):
        yield tuple(d for part in parts for d in part)


def _groups(
    card: Card,
    divided: Sequence[Division],
    existing: Sequence[GpuInstance],
    all_in_use: bool,
    sick: int,
) -> list[_Group]:
    here = {(e.profile, e.placement.start): e for e in existing}
    groups = []
    for division, count in Counter(divided).items():
        masks = card.profiles[division.profile].masks
        if division.start >= 0:
            masks = {s: m for s, m in masks.items() if s == division.start}
        if sick:
            masks = {
                s: m
                for s, m in masks.items()
                if not m & sick or _adds_nothing(card, division, here.get((division.profile, s)))
            }
        gains = {
            start: _gain(card, division, here.get((division.profile, start)), all_in_use)
            for start in masks
        }
        top = sorted(gains.values(), reverse=True)[:count]
        groups.append(_Group(division, count, masks, gains, _total(top)))
    return groups


def _adds_nothing(card: Card, division: Division, existing: GpuInstance | None) -> bool:
    """Whether `existing` becomes `division` without a new compute instance in it."""
    if existing is None:
        return False
    profile = card.profiles[division.profile].profile
    change = redivide(profile, existing.compute, division.compute, aligned=card.aligned)
    return not change.added


def _gain(card: Card, division: Division, existing: GpuInstance | None, all_in_use: bool) -> _Gain:
    """What putting `division` where `existing` lies saves: devices in use, devices, instances."""
    if existing is None:
        return _NOTHING
    profile = card.profiles[division.profile].profile
    change = redivide(profile, existing.compute, division.compute, aligned=card.aligned)
    in_use = sum(1 for c in change.kept if all_in_use or c.usage.in_use)
    return (in_use, len(change.kept), 1)


def _total(gains: Sequence[_Gain]) -> _Gain:
    return (sum(g[0] for g in gains), sum(g[1] for g in gains), sum(g[2] for g in gains))


def _add(a: _Gain, b: _Gain) -> _Gain:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _place(groups: Sequence[_Group], floor: _Gain | None) -> Iterator[tuple[_Gain, int, _Starts]]:
    """Every placement of all groups whose gain may reach the best one seen so far.

    Gains are compared lexicographically, an order that addition keeps; so a partial placement may
    be cut as soon as even the best rest would leave it below what was reached already.
    """
    rest = [_NOTHING] * (len(groups) + 1)
    for i in range(len(groups) - 1, -1, -1):
        rest[i] = _add(groups[i].best, rest[i + 1])
    bar = [floor]

    def descend(
        i: int, occupied: int, gain: _Gain, chosen: _Starts
    ) -> Iterator[tuple[_Gain, int, _Starts]]:
        if bar[0] is not None and _add(gain, rest[i]) < bar[0]:
            return
        if i == len(groups):
            bar[0] = gain if bar[0] is None else max(bar[0], gain)
            yield gain, occupied, chosen
            return
        group = groups[i]
        free = [s for s, mask in group.masks.items() if not mask & occupied]
        for starts in combinations(free, group.count):
            taken, saved = occupied, gain
            for s in starts:
                taken |= group.masks[s]
                saved = _add(saved, group.gains[s])
            here = tuple((group.division, s) for s in starts)
            yield from descend(i + 1, taken, saved, chosen + here)

    yield from descend(0, 0, _NOTHING, ())


# --- MPS --------------------------------------------------------------------------------------


def _disturbance(
    card: Card, wanted: Sequence[WantedInstance], existing: Sequence[GpuInstance]
) -> Callable[[_Starts], int] | None:
    """What a layout costs the MPS daemons there are; None where it is the same for all layouts."""
    daemons = sum(1 for i in existing for c in i.compute if c.mps)
    if not daemons or not any(w.mps for w in wanted):
        return None
    here = {(e.profile, e.placement.start): e for e in existing}
    groups: dict[tuple[str, int], list[WantedInstance]] = {}
    for instance in wanted:
        groups.setdefault((instance.profile, instance.slices), []).append(instance)

    def disturbance(starts: _Starts) -> int:
        seats: dict[tuple[str, int], list[tuple[int, WantedMps | None]]] = {}
        for division, start in starts:
            for slices, runs in _daemons_of(card, division, here.get((division.profile, start))):
                seats.setdefault((division.profile, slices), []).append((start, runs))
        kept = sum(1 for group in seats.values() for _, runs in group if runs)
        return (daemons - kept) * STOP + sum(
            _cheapest(group, groups[key]) for key, group in seats.items()
        )

    return disturbance


def _daemons_of(
    card: Card, division: Division, existing: GpuInstance | None
) -> list[tuple[int, WantedMps | None]]:
    """The devices of a GPU instance that is to be `division`: their sizes and their daemons."""
    if existing is None:
        return [(slices, None) for slices in division.compute]
    profile = card.profiles[division.profile].profile
    change = redivide(profile, existing.compute, division.compute, aligned=card.aligned)
    kept = [(c.slices, c.mps.runs if c.mps else None) for c in change.kept]
    return [*kept, *((slices, None) for slices in change.added)]


def _cheapest(seats: list[tuple[int, WantedMps | None]], wanted: list[WantedInstance]) -> int:
    return match(
        [start for start, _ in seats], wanted, lambda number, mps: cost_of(seats[number][1], mps)
    )[0]


# --- the answer -------------------------------------------------------------------------------


def _target(
    card: Card,
    starts: _Starts,
    existing: Sequence[GpuInstance],
) -> Target:
    here = {(e.profile, e.placement.start): e for e in existing}
    placed = []
    for division, start in starts:
        found = here.pop((division.profile, start), None)
        profile = card.profiles[division.profile].profile
        present = found.compute if found else ()
        change = redivide(profile, present, division.compute, aligned=card.aligned)
        placed.append(Placed(division, start, found, change))
    return Target(placed=tuple(placed), gone=tuple(here.values()))
