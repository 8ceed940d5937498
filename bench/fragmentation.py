"""How many requests find no place although there is enough room, by the order of devices.

A scheduler takes the first published device that fits. Requests come and go by chance on one GPU;
one is turned away by fragmentation when it would fit if the instances could be moved.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence

from bench.tables import show
from nodeagent.claims.names import DevicePlace, places
from nodeagent.claims.offering.counters import CounterScheme, fits
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, pool_offer
from nodeagent.plan.observed import Gpu
from tests.claims.boards import KINDS, NODE, legal_sets
from tests.plan.cards import card

REQUESTS = 20_000
SEED = 20260101
LOADS = {"light": 0.5, "mid": 0.8}  # what is asked for, as a share of the memory slices
SMALL = 0.6  # how much rarer each larger size of profile is

Kinds = tuple[str, ...]


def run() -> None:
    """Under half a minute."""
    rows: list[list[object]] = []
    for board in KINDS:
        gpu = card(board)
        known = places(gpu)
        published = pool_offer(gpu, OfferContext(NODE, GpuRules(), 0)).devices
        ours = [known[device.name] for device in published if device.name in known]
        ascending = sorted(ours, key=lambda place: (place.profile.name, place.placement.start))
        for load, share in LOADS.items():
            figures = [_turned_away(gpu, order, share) * 100 for order in (ours, ascending)]
            rows.append([f"{board}, {load}", *figures])
    show(
        f"Requests that fragmentation turns away, % of {REQUESTS} on one GPU",
        ["board, load", "as published", "ascending"],
        rows,
    )


def _turned_away(gpu: Gpu, order: Sequence[DevicePlace], load: float) -> float:
    """The share of all requests; those for which there is no room at all are not in it."""
    chance = random.Random(SEED)  # noqa: S311 - the same requests each time
    scheme, legal = CounterScheme.of(gpu), _legal_kinds(gpu)
    by_profile: dict[str, list[DevicePlace]] = {}
    for place in order:
        by_profile.setdefault(place.profile.name, []).append(place)
    names = sorted(by_profile)
    sizes = {name: by_profile[name][0].placement.size for name in names}
    weights = [SMALL ** sorted(set(sizes.values())).index(sizes[name]) for name in names]
    mean = sum(w * sizes[n] for w, n in zip(weights, names, strict=True)) / sum(weights)
    slots = max(place.placement.start + place.placement.size for place in order)
    now, left, fragmented = 0.0, dict(scheme.totals), 0
    standing: list[tuple[float, int, str, dict[str, int]]] = []  # by the end of each
    for number in range(REQUESTS):
        now += chance.expovariate(load * slots / mean)
        while standing and standing[0][0] <= now:
            _add(left, heapq.heappop(standing)[3], 1)
        (name,) = chance.choices(names, weights)
        end = now + chance.expovariate(1.0)
        taken = next((t for p in by_profile[name] if fits(t := scheme.consumption(p), left)), None)
        if taken is not None:
            _add(left, taken, -1)
            heapq.heappush(standing, (end, number, name, taken))
        elif _kinds([name, *(one[2] for one in standing)]) in legal:
            fragmented += 1
    return fragmented / REQUESTS


def _add(left: dict[str, int], amounts: dict[str, int], sign: int) -> None:
    for counter, amount in amounts.items():
        left[counter] += sign * amount


def _legal_kinds(gpu: Gpu) -> frozenset[Kinds]:
    """What can lie on the GPU together, wherever, as sorted profiles."""
    known = places(gpu)
    board = gpu.uuid.removeprefix("GPU-")
    return frozenset(_kinds(known[n].profile.name for n in names) for names in legal_sets(board))


def _kinds(names: Iterable[str]) -> Kinds:
    return tuple(sorted(names))
