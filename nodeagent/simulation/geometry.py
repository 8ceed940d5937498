"""Where instances can lie on a card: room, coexistence, and the place the driver would choose.

Pure functions, for GPU instances in the memory slices of a card and for compute instances in the
slots of a GPU instance alike. `taken` are the slices or slots that are not free, as bits.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from nodeagent.simulation.boards import (
    ALL_MEDIA_ENGINES,
    MEDIA_EXTENSIONS,
    NO_MEDIA_ENGINES,
    GpuProfile,
    Slices,
)
from nodeagent.simulation.state import Instance

_Place = TypeVar("_Place", bound=Slices)


def occupied(instances: Iterable[Instance]) -> int:
    """What these instances take, as bits."""
    taken = 0
    for instance in instances:
        taken |= instance.mask
    return taken


def may_join(profile: GpuProfile, present: Collection[GpuProfile]) -> bool:
    """Whether one more of `profile` is allowed beside GPU instances of those, were there room.

    Beside the number of each profile, the media engines limit: one +me a card (A30: over both
    of its +me profiles), and +me.all leaves nothing for profiles that take any.
    """
    if sum(p.id == profile.id for p in present) >= profile.max_instances:
        return False
    kinds = {p.kind for p in present}
    if profile.kind in MEDIA_EXTENSIONS and kinds & MEDIA_EXTENSIONS:
        return False
    if profile.kind in ALL_MEDIA_ENGINES and kinds - NO_MEDIA_ENGINES:
        return False
    return not (kinds & ALL_MEDIA_ENGINES and profile.kind not in NO_MEDIA_ENGINES)


def choose(
    places: Iterable[_Place], taken: int, *, keep: Iterable[Slices], order: Callable[[_Place], int]
) -> _Place | None:
    """The place the driver takes when none is given, None when none is free.

    It is the free one after which most of the places in `keep` are still possible; among equals
    the first in `order`. The rule is inferred for GPU instances, with all profiles' placements to
    keep and their ids as the order: it reproduces every published sequence of creations, among
    them a first 1g that lands at slice 6. Without anything to keep it is the first fit.
    """
    masks = [place.mask for place in keep]

    def rank(place: _Place) -> tuple[int, int]:
        after = taken | place.mask
        return -sum(not mask & after for mask in masks), order(place)

    return min((place for place in places if not place.mask & taken), key=rank, default=None)


def room(places: Iterable[Slices], taken: int) -> int:
    """How many of these places can be taken side by side.

    They have one size, so taking the leftmost free ones is the most.
    """
    count = 0
    for place in sorted(places, key=lambda p: p.start):
        if not place.mask & taken:
            taken |= place.mask
            count += 1
    return count
