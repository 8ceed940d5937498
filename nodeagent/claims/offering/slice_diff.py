"""What to write so that a pool's ResourceSlices are as its offer has them. Pure.

A pool is consistent for schedulers only where all its slices have one generation and are as many
as each of them says. So a change of one slice keeps the generation, and any other raises it for
all. Counters are written before the devices that take from them, deletions first of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.claims.offering.resource_slices import (
    Json,
    NodeReference,
    UnreadableSlice,
    compare,
    read_offer,
    resource_slices,
)


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """`body` is the whole object."""

    body: Json


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """`body` is the whole object, with the version that it replaces."""

    body: Json


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """By its name."""

    name: str


_LARGEST_GENERATION = 2**63 - 1  # the API server's

SliceWrite = CreateSlice | UpdateSlice | DeleteSlice


def slice_writes(
    offers: Iterable[PoolOffer], found: Sequence[Json], node: NodeReference
) -> tuple[SliceWrite, ...]:
    """The writes that lead from this node's slices `found` to the offers; none when they are so."""
    by_pool: dict[str, list[Json]] = {}
    for one in found:
        by_pool.setdefault(str(one["spec"]["pool"]["name"]), []).append(one)
    wanted = {offer.pool: offer for offer in offers if offer.devices}
    writes: list[SliceWrite] = []
    for pool, present in by_pool.items():
        if pool not in wanted:
            writes += [DeleteSlice(str(one["metadata"]["name"])) for one in present]
    for pool, offer in wanted.items():
        writes += _pool_writes(offer, by_pool.get(pool, []), node)
    return tuple(writes)


def _pool_writes(
    offer: PoolOffer, present: Sequence[Json], node: NodeReference
) -> list[SliceWrite]:
    generation = max((one["spec"]["pool"]["generation"] for one in present), default=0)
    known = {str(one["metadata"]["name"]): one for one in present}
    same = resource_slices(offer, node, generation)
    changed = [one for one in same if not _is_as(one, known.get(one["metadata"]["name"]))]
    gone = known.keys() - {str(one["metadata"]["name"]) for one in same}
    if not changed and not gone:
        return []
    alone = len(changed) == 1 and not gone and str(changed[0]["metadata"]["name"]) in known
    if present and not alone:
        # No honest writer comes that far; these replace every slice that has it.
        next_one = 1 if generation == _LARGEST_GENERATION else generation + 1
        changed = list(resource_slices(offer, node, next_one))
    return [
        *(DeleteSlice(name) for name in sorted(gone)),
        *(_write(one, known.get(str(one["metadata"]["name"]))) for one in changed),
    ]


def _is_as(sent: Json, found: Json | None) -> bool:
    """Whether it is there and has nothing less, else or more."""
    if found is None or compare(sent, found):
        return False
    try:
        return read_offer([sent]) == read_offer([found])
    except UnreadableSlice:
        return False


def _write(body: Json, found: Json | None) -> SliceWrite:
    if found is None:
        return CreateSlice(body)
    version: Mapping[str, object] = {"resourceVersion": found["metadata"]["resourceVersion"]}
    return UpdateSlice({**body, "metadata": {**body["metadata"], **version}})
