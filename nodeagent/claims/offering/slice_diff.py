"""What to write so that a pool's ResourceSlices are as its offer has them. Pure.

A pool is consistent for schedulers only where all its slices have one generation and are as many
as each of them says. So a change of one slice keeps the generation, and any other raises it for
all. Counters are written before the devices that take from them, deletions first of all.
"""

from __future__ import annotations

from collections.abc import Sequence
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
class SliceDiff:
    """The slices to delete, by name, and then whole objects to write, in this order. One with a
    `resourceVersion` replaces that version, the others are new.
    """

    delete: tuple[str, ...] = ()
    write: tuple[Json, ...] = ()


def slice_diff(offer: PoolOffer, present: Sequence[Json], node: NodeReference) -> SliceDiff:
    """What leads from the pool's slices that are `present` to its offer."""
    known = {str(one["metadata"]["name"]): one for one in present}
    generation = max((one["spec"]["pool"]["generation"] for one in present), default=0)
    wanted = resource_slices(offer, node, generation)
    changed = [one for one in wanted if not _is_as(one, known.get(one["metadata"]["name"]))]
    gone = known.keys() - {str(one["metadata"]["name"]) for one in wanted}
    if not changed and not gone:
        return SliceDiff()
    alone = len(changed) == 1 and not gone and str(changed[0]["metadata"]["name"]) in known
    if present and not alone:
        # After the largest that the API server takes, it begins anew.
        changed = list(resource_slices(offer, node, generation % (2**63 - 1) + 1))
    write = (_replacing(one, known.get(str(one["metadata"]["name"]))) for one in changed)
    return SliceDiff(tuple(sorted(gone)), tuple(write))


def _is_as(sent: Json, found: Json | None) -> bool:
    """Whether it is there and has nothing less, else or more."""
    if found is None or compare(sent, found):
        return False
    try:
        return read_offer([sent]) == read_offer([found])
    except UnreadableSlice:
        return False


def _replacing(body: Json, found: Json | None) -> Json:
    if found is None:
        return body
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    return {**body, "metadata": {**body["metadata"], **version}}
