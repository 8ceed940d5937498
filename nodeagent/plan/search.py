"""The layout to aim for: the best of all legal placements of what is wanted.

A card has at most some 2,300 legal layouts, and at most some 150 for one set of profiles, so all
of them are looked at. Among those that satisfy the request the one is taken that, in this order,

1. takes away the fewest devices in use (the planner refuses when that is not none),
2. takes away the fewest devices, then the fewest GPU instances,
3. stops the fewest MPS daemons, then starts or changes the fewest,
4. leaves the most room for the largest profile, then for the next one, and so on,
5. comes first in a fixed order (largest profiles first, lowest slices first).

On unhealthy memory slices only what is there can be kept: no new GPU instance touches them, and
none that does gets another compute instance.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, product

from nodeagent.plan.compute_instances import ANYWHERE, Division, Redivision, divisions, redivide
from nodeagent.plan.desired import Reserved, WantedInstance
from nodeagent.plan.layouts import Card
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, mask_of
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct


class Placed(Struct, frozen=True):
    """A GPU instance of the layout aimed for; `existing` when it is there already.

    `mask` are its memory slices as bits. `stays` counts what of `existing` stays: devices in use,
    devices, GPU instances.
    """

    division: Division
    start: int
    mask: int
    existing: GpuInstance | None
    change: Redivision
    stays: tuple[int, int, int]


_Layout = tuple[Placed, ...]


class Target(Struct, frozen=True):
    """The layout aimed for. `gone` are the GPU instances that have no place in it."""

    placed: _Layout
    gone: tuple[GpuInstance, ...]

    @property
    def divided(self) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
        """The compute instances that go from GPU instances that stay."""
        for placed in self.placed:
            if placed.existing is not None:
                for device in placed.change.destroyed:
                    yield placed.existing, device


def best_layout(
    card: Card,
    wanted: Sequence[WantedInstance],
    existing: Sequence[GpuInstance],
    *,
    all_in_use: bool = False,
    unhealthy: int = 0,
    reserved: Sequence[Reserved] = (),
) -> Target | None:
    """The layout to aim for, or None when `wanted` cannot all be on this card at once.

    `all_in_use`: it is not known which instances are in use, so each of them counts. `unhealthy`:
    memory slices as bits where nothing new may come. Nothing at all comes to what is `reserved`,
    and `existing` has nothing of it.
    """
    taken = mask_of(r.placement for r in reserved if r.placement)
    beside = [r.profile for r in reserved if r.profile in card.profiles]
    here = {(e.profile, e.placement.start): e for e in existing}
    daemons = sum(1 for i in existing for c in i.compute if c.mps)
    shared = daemons > 0 and any(w.mps for w in wanted)  # else all layouts disturb MPS alike

    @cache
    def places(division: Division) -> list[Placed]:
        """Wherever it can be."""
        profile = card.profiles[division.profile]
        found: list[Placed] = []
        for start, mask in profile.masks.items():
            if division.start not in (ANYWHERE, start):
                continue
            there = here.get((division.profile, start))
            present = there.compute if there else ()
            change = redivide(profile.profile, present, division.compute, aligned=card.aligned)
            if mask & taken or (mask & unhealthy and (there is None or change.added)):
                continue
            in_use = sum(1 for device in change.kept if all_in_use or device.usage.in_use)
            stays = (in_use, len(change.kept), 1 if there else 0)
            found.append(Placed(division, start, mask, there, change, stays))
        return found

    room = cache(card.room)

    def score(way: tuple[_Layout, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
        """Rate a layout by its cost to MPS, then by the room it leaves; all keep as much."""
        layout, spare = way
        occupied = sum(placed.mask for placed in layout) | unhealthy | taken
        return -_cost_to_mps(layout, wanted, daemons) if shared else 0, room(occupied, spare)

    ways: list[tuple[_Layout, tuple[int, ...]]] = []
    for divided in _all_divisions(card, wanted):
        spare = card.spare([*beside, *(division.profile for division in divided)])
        if spare is not None:
            choices = [(division, places(division)) for division in divided]
            ways += [(layout, spare) for layout in _side_by_side(choices)]
    if not ways:
        return None
    kept = [tuple(map(sum, zip(*(p.stays for p in layout), strict=True))) for layout, _ in ways]
    most = max(kept)
    best, _ = max((w for w, stays in zip(ways, kept, strict=True) if stays == most), key=score)
    stay = [placed.existing for placed in best]
    return Target(placed=best, gone=tuple(e for e in existing if e not in stay))


def _all_divisions(card: Card, wanted: Sequence[WantedInstance]) -> Iterator[tuple[Division, ...]]:
    by_profile = {name: [w for w in wanted if w.profile == name] for name in card.profiles}
    ways = [
        divisions(card.profiles[name].profile, instances, aligned=card.aligned)
        for name, instances in by_profile.items()
        if instances
    ]
    return (tuple(chain(*parts)) for parts in product(*ways))


def _side_by_side(choices: Sequence[tuple[Division, list[Placed]]]) -> Iterator[_Layout]:
    """Every way to take one place for each division so that none overlap. Equal divisions, which
    are next to each other, are interchangeable: only one of their orders counts, that of places.
    """
    alike = Counter(division for division, _ in choices)

    def rest_of(layout: _Layout, occupied: int) -> Iterator[_Layout]:
        if len(layout) == len(choices):
            yield layout
            return
        division, places = choices[len(layout)]
        last = layout[-1].start if layout and layout[-1].division == division else -1
        behind = alike[division] - sum(1 for placed in layout if placed.division == division) - 1
        for placed in places[: max(len(places) - behind, 0)]:  # those need one each, further on
            if placed.start > last and not placed.mask & occupied:
                yield from rest_of((*layout, placed), occupied | placed.mask)

    return rest_of((), 0)


def _cost_to_mps(layout: _Layout, wanted: Sequence[WantedInstance], daemons: int) -> int:
    seats = []
    for placed in layout:
        profile, start = placed.division.profile, placed.start
        for device in placed.change.kept:
            runs = device.mps.runs if device.mps else None
            seats.append(Seat(profile, device.slices, start, runs))
        seats += [Seat(profile, slices, start) for slices in placed.change.added]
    stopped = daemons - sum(1 for seat in seats if seat.runs)
    cost, _ = assign(seats, wanted, lambda number, mps: cost_of(seats[number].runs, mps))
    return stopped * STOP + cost


# --- why there is none --------------------------------------------------------------------------


def does_not_fit(gpu: Gpu, wanted: Sequence[WantedInstance], path: str) -> Problem:
    """Report a layout that no card of this kind holds, and the first device that is too much."""
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

    where = f" at slice {too_much.start}" if too_much.start is not None else ""
    return gpu.problem(
        Code.DOES_NOT_FIT,
        "layout",
        path=too_much.path or path,
        wanted=counted(map(name, wanted)),
        fitting=counted(map(name, fitting)) or "nothing else",
        first=name(too_much) + where,
        remedy=_alternative(card, too_much, wanted),
    )


def _alternative(card: Card, instance: WantedInstance, wanted: Sequence[WantedInstance]) -> str:
    profile = card.profiles[instance.profile].profile
    if not profile.placements:
        return f"the driver reports no placement for a {profile.name}"
    whole = sum(1 for w in wanted if w.profile == profile.name and w.slices == profile.slices)
    if whole > profile.max_count:
        return f"the card can have at most {profile.max_count} {profile.name}"
    starts = ", ".join(str(p.start) for p in sorted(profile.placements))
    return (
        f"a {profile.name} takes {profile.placements[0].size} of {card.slots} memory slices and "
        f"can start at {starts}; take fewer or smaller instances"
    )


def counted(names: Iterable[str]) -> str:
    """Names for a sentence, such as `2x 1g.10gb + 3g.40gb`."""
    counts = Counter(names)
    return " + ".join(f"{n}x {name}" if n > 1 else name for name, n in counts.items())


STOP = 100  # the cost of stopping one daemon: more than all the starts a card has room for
START = 1

Cost = Callable[[int, WantedMps | None], int]


def cost_of(runs: WantedMps | None, wanted: WantedMps | None) -> int:
    """What it takes to make a device with a daemon that is `runs` (None: it has none) so."""
    if runs == wanted:
        return 0
    if runs is None:
        return START
    if wanted is None:
        return STOP
    return STOP + START if runs.needs_restart_for(wanted) else START


class Seat(Struct, frozen=True):
    """A MIG device that can have a daemon: `slices` of compute in a GPU instance of `profile` that
    begins at memory slice `start`; `runs` is what its daemon is now.
    """

    profile: str
    slices: int
    start: int
    runs: WantedMps | None = None


def assign(
    seats: Sequence[Seat], wanted: Sequence[WantedInstance], cost: Cost
) -> tuple[int, list[WantedMps | None]]:
    """The cost in all, and what each device gets. `cost` is that of giving a device (by its number)
    a daemon. For every device there is one wanted, at its slice where that one insists on a slice.

    Of all ways the cheapest, found exactly; of equally cheap ones that which gives the first device
    what comes first in the document.
    """
    total = 0
    given: list[WantedMps | None] = [None] * len(seats)
    alike: dict[tuple[str, int], list[int]] = {}
    for number, seat in enumerate(seats):
        alike.setdefault((seat.profile, seat.slices), []).append(number)
    for kind, numbers in alike.items():
        asked = [w for w in wanted if (w.profile, w.slices) == kind]
        price, daemons = _match([(n, seats[n].start) for n in numbers], asked, cost)
        total += price
        for number, mps in zip(numbers, daemons, strict=True):
            given[number] = mps
    return total, given


def _match(
    places: Sequence[tuple[int, int]], wanted: Sequence[WantedInstance], cost: Cost
) -> tuple[int, tuple[WantedMps | None, ...]]:
    """Assign MPS to like devices, each given by number and slice, at the least cost."""
    first = wanted[0].mps if wanted else None
    if all(w.mps == first for w in wanted):
        return sum(cost(number, first) for number, _ in places), (first,) * len(places)
    counts = Counter((w.start, w.mps) for w in wanted)

    @cache
    def best(
        position: int, left: tuple[int, ...]
    ) -> tuple[int, tuple[WantedMps | None, ...]] | None:
        if position == len(places):
            return 0, ()
        number, slice_ = places[position]
        found: tuple[int, tuple[WantedMps | None, ...]] | None = None
        for index, (start, mps) in enumerate(counts):
            if not left[index] or start not in (None, slice_):
                continue
            rest = best(position + 1, (*left[:index], left[index] - 1, *left[index + 1 :]))
            if rest is None:
                continue
            price = cost(number, mps) + rest[0]
            if found is None or price < found[0]:
                found = (price, (mps, *rest[1]))
        return found

    result = best(0, tuple(counts.values()))
    if result is None:
        raise ValueError(f"no way to give {len(wanted)} wanted instances to devices {places}")
    return result
