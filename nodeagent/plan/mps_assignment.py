"""Which MIG device gets which of the wanted MPS daemons, so that the least is disturbed.

Devices of one profile and size are interchangeable but for where they lie and what their daemons
are already. Of all ways to hand out what is wanted the cheapest is taken, found exactly; of equally
cheap ones the one that gives the first device what comes first in the document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import Struct

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
    """For devices that are alike, each given by its number and its slice."""
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
