"""Which MIG device gets which of the wanted MPS daemons, so that the least is disturbed.

Devices of one profile and size are interchangeable but for where they lie and what their daemons
are already. Of all ways to hand out what is wanted the cheapest is taken, found exactly; of equally
cheap ones that which serves the first device with what the document says first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.shares import WantedMps

STOP = 100  # the cost of stopping one daemon: more than all the starts a card has room for
START = 1

Cost = Callable[[int, WantedMps | None], int]
_Kind = tuple[int | None, WantedMps | None]


def cost_of(runs: WantedMps | None, wanted: WantedMps | None) -> int:
    """What it takes to make a device with a daemon that is `runs` (None: it has none) so."""
    if runs == wanted:
        return 0
    if runs is None:
        return START
    if wanted is None:
        return STOP
    return STOP + START if runs.needs_restart_for(wanted) else START


def match(
    starts: Sequence[int], wanted: Sequence[WantedInstance], cost: Cost
) -> tuple[int, tuple[WantedMps | None, ...]]:
    """What each device gets, and what that costs in all.

    `starts` are the memory slices at which the devices' GPU instances begin, `cost` tells what it
    costs to give a device (by its number) a daemon. There are as many devices as are wanted, and a
    device at every slice that a wanted one insists on.
    """
    first = wanted[0].mps if wanted else None
    if all(w.mps == first for w in wanted):
        return sum(cost(number, first) for number in range(len(starts))), (first,) * len(starts)
    counts = Counter((w.start, w.mps) for w in wanted)
    kinds: tuple[_Kind, ...] = tuple(counts)

    @cache
    def best(number: int, left: tuple[int, ...]) -> tuple[int, tuple[WantedMps | None, ...]] | None:
        if number == len(starts):
            return 0, ()
        found: tuple[int, tuple[WantedMps | None, ...]] | None = None
        for index, (start, mps) in enumerate(kinds):
            if not left[index] or start not in (None, starts[number]):
                continue
            rest = best(number + 1, (*left[:index], left[index] - 1, *left[index + 1 :]))
            if rest is None:
                continue
            price = cost(number, mps) + rest[0]
            if found is None or price < found[0]:
                found = (price, (mps, *rest[1]))
        return found

    result = best(0, tuple(counts.values()))
    if result is None:
        raise ValueError(f"no way to give {len(wanted)} wanted instances to devices at {starts}")
    return result
