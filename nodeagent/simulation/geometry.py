"""Where instances can lie on a card: room, coexistence, and the place the driver would choose.

Pure functions over a board and what lies on it. A GPU instance is its profile and a mask of the
memory slices it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nodeagent.simulation.boards import (
    ALL_MEDIA_ENGINES,
    FOUR_SLICES,
    MEDIA_EXTENSIONS,
    NO_MEDIA_ENGINES,
    THREE_SLICES,
    Board,
    GpuProfile,
    InstancePlacement,
)

Lying = Sequence[tuple[GpuProfile, int]]  # (profile, mask) of each GPU instance


def occupied(lying: Lying) -> int:
    """The memory slices that are taken, as bits."""
    mask = 0
    for _, taken in lying:
        mask |= taken
    return mask


def may_join(profile: GpuProfile, lying: Lying, *, no_4g_with_3g: bool = False) -> bool:
    """Whether one more of `profile` is allowed, were there room.

    Beside the number of each profile, the media engines limit: one +me a card (A30: over both
    of its +me profiles), and +me.all leaves nothing for profiles that take any.
    """
    if sum(p.id == profile.id for p, _ in lying) >= profile.max_instances:
        return False
    kinds = {p.kind for p, _ in lying}
    if profile.kind in MEDIA_EXTENSIONS and kinds & MEDIA_EXTENSIONS:
        return False
    if profile.kind in ALL_MEDIA_ENGINES and kinds - NO_MEDIA_ENGINES:
        return False
    if kinds & ALL_MEDIA_ENGINES and profile.kind not in NO_MEDIA_ENGINES:
        return False
    rivals = {THREE_SLICES: FOUR_SLICES, FOUR_SLICES: THREE_SLICES}
    return not (no_4g_with_3g and rivals.get(profile.kind) in kinds)


def choose(
    board: Board, profile: GpuProfile, taken: int, *, mirrored: bool
) -> InstancePlacement | None:
    """The place the driver takes when none is given, None when there is none.

    It is the free one after which most placements of all profiles, counted together, are still
    possible; among equals the one with the lowest instance id. The rule is inferred: it
    reproduces every published sequence of creations, among them a first 1g that lands at slice 6.
    """
    masks = [placement.mask for p in board.profiles for placement in p.placements]
    free = [placement for placement in profile.placements if not placement.mask & taken]
    if not free:
        return None

    def rank(placement: InstancePlacement) -> tuple[int, int]:
        after = taken | placement.mask
        left = sum(not mask & after for mask in masks)
        return -left, instance_id(placement, mirrored=mirrored)

    return min(free, key=rank)


def instance_id(placement: InstancePlacement, *, mirrored: bool) -> int:
    """The id that a GPU instance at this place gets on a normal or a mirrored card."""
    return placement.mirrored_id if mirrored else placement.id


def capacity(profile: GpuProfile, lying: Lying, *, no_4g_with_3g: bool = False) -> int:
    """How many more of `profile` fit now."""
    if not may_join(profile, lying, no_4g_with_3g=no_4g_with_3g):
        return 0
    there = sum(p.id == profile.id for p, _ in lying)
    taken, count = occupied(lying), 0
    # All placements of a profile have one size, so taking the leftmost free ones is the most.
    for placement in sorted(profile.placements, key=lambda p: p.start):
        if not placement.mask & taken:
            taken |= placement.mask
            count += 1
    return min(count, profile.max_instances - there)


# --- compute instances --------------------------------------------------------------------------

Slot = tuple[int, int]  # start and size in compute slots of the GPU instance


def slot_mask(slot: Slot) -> int:
    """The compute slots as bits."""
    start, size = slot
    return ((1 << size) - 1) << start


def choose_slot(
    gpu_profile: GpuProfile, slots: Sequence[Slot], taken: int, *, aligned: bool
) -> Slot | None:
    """The compute slots the driver takes when none are given, None when none are free.

    Ampere takes the first fit. Hopper and later keep an aligned tree and take the place that
    leaves most others valid, the lowest among equals.
    """
    free = [slot for slot in slots if not slot_mask(slot) & taken]
    if not free:
        return None
    if not aligned:
        return min(free)
    masks = [slot_mask(slot) for p in gpu_profile.compute for slot in p.placements]

    def rank(slot: Slot) -> tuple[int, int]:
        after = taken | slot_mask(slot)
        return -sum(not mask & after for mask in masks), slot[0]

    return min(free, key=rank)


def most_slots(slots: Collection[Slot], taken: int) -> int:
    """How many of these places can be taken side by side."""
    count = 0
    for slot in sorted(slots):
        if not slot_mask(slot) & taken:
            taken |= slot_mask(slot)
            count += 1
    return count
