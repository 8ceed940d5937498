"""How GPU instances are divided into compute instances.

A document asks for devices such as three `1c.3g.40gb`; which of them share a GPU instance is the
agent's to choose. The driver lists the compute profiles of a GPU instance profile only once such
an instance exists; until then the documented rules decide, and where architectures differ, the
stricter one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.observed import (
    ComputeInstance,
    GpuInstanceProfile,
    Placement,
)

ANYWHERE = -1  # as `Division.start`


@dataclass(frozen=True, slots=True, order=True)
class Division:
    """One GPU instance that should exist, with the sizes of its compute instances, largest first.

    `start` is the wanted memory slice, or ANYWHERE.
    """

    profile: str
    start: int
    compute: tuple[int, ...]


def sizes_offered(profile: GpuInstanceProfile) -> tuple[int, ...]:
    """The sizes in compute slices that a GPU instance of this profile can be divided into."""
    if profile.compute:
        return tuple(sorted({c.slices for c in profile.compute}))
    # The rule by which NVIDIA's own tools enumerate compute instances of C slices in G.
    whole = profile.slices
    return tuple(c for c in range(1, whole + 1) if c == whole or 2 * c <= whole + 1)


@lru_cache(maxsize=4096)
def compute_fits(
    profile: GpuInstanceProfile, sizes: tuple[int, ...], kept: tuple[Placement, ...], aligned: bool
) -> bool:
    """Whether compute instances of `sizes`, created largest first, fit beside the `kept` ones.

    `aligned`: compute slots are handed out as an aligned binary tree (Hopper and later), else by
    first fit (Ampere); from NVIDIA's open kernel modules. Used as long as the driver does not
    list the placements.
    """
    if not sizes:
        return True
    occupied = 0
    for place in kept:
        occupied |= place.mask
    return _fits(profile, sizes, occupied, aligned)


def _fits(
    profile: GpuInstanceProfile, sizes: tuple[int, ...], occupied: int, aligned: bool
) -> bool:
    if not sizes:
        return True
    return any(
        _fits(profile, sizes[1:], occupied | place.mask, aligned)
        for place in _compute_placements(profile, sizes[0], aligned)
        if not place.mask & occupied
    )


def _compute_placements(
    profile: GpuInstanceProfile, slices: int, aligned: bool
) -> tuple[Placement, ...]:
    known = {place for c in profile.compute if c.slices == slices for place in c.placements}
    if known:
        return tuple(sorted(known))
    if not aligned:
        return tuple(Placement(s, slices) for s in range(profile.slices - slices + 1))
    size = 1 << (slices - 1).bit_length()
    room = 1 << (profile.slices - 1).bit_length()
    starts = range(0, room - size + 1, size)
    # A slot beyond the GPU instance's own slices exists in the tree, but not on the chip.
    return tuple(Placement(s, size) for s in starts if s + slices <= profile.slices)


def divisions(
    profile: GpuInstanceProfile, wanted: Sequence[WantedInstance], *, aligned: bool
) -> Iterator[tuple[Division, ...]]:
    """Every way to gather `wanted` devices of one profile into GPU instances."""
    items = sorted((-w.slices, ANYWHERE if w.start is None else w.start) for w in wanted)
    seen: set[tuple[Division, ...]] = set()
    for bins in _gather(profile, items, [], aligned, len(profile.placements)):
        division = tuple(sorted(bins))
        if division not in seen:
            seen.add(division)
            yield division


def _gather(
    profile: GpuInstanceProfile,
    items: Sequence[tuple[int, int]],
    bins: list[Division],
    aligned: bool,
    most: int,
) -> Iterator[list[Division]]:
    if not items:
        yield bins
        return
    (negative, start), rest = items[0], items[1:]
    slices = -negative
    for index, bin_ in enumerate(bins):
        if bin_ in bins[:index] or not _joins(profile, bin_, slices, start, aligned):
            continue
        joined = Division(
            bin_.profile,
            max(bin_.start, start),
            tuple(sorted((*bin_.compute, slices), reverse=True)),
        )
        yield from _gather(
            profile, rest, [*bins[:index], joined, *bins[index + 1 :]], aligned, most
        )
    if len(bins) < most:
        alone = Division(profile.name, start, (slices,))
        yield from _gather(profile, rest, [*bins, alone], aligned, most)


def _joins(
    profile: GpuInstanceProfile, division: Division, slices: int, start: int, aligned: bool
) -> bool:
    if sum(division.compute) + slices > profile.slices:
        return False
    if ANYWHERE not in (division.start, start) and division.start != start:
        return False
    sizes = tuple(sorted((*division.compute, slices), reverse=True))
    return compute_fits(profile, sizes, (), aligned)


@dataclass(frozen=True, slots=True)
class Redivision:
    """How an existing GPU instance becomes what is wanted: what stays, goes and comes."""

    kept: tuple[ComputeInstance, ...]
    destroyed: tuple[ComputeInstance, ...]
    added: tuple[int, ...]


def redivide(
    profile: GpuInstanceProfile,
    present: tuple[ComputeInstance, ...],
    wanted: tuple[int, ...],
    *,
    aligned: bool,
) -> Redivision:
    """The way that takes away the fewest in use, then the fewest, of the present ones; of those
    the one that ends the fewest MPS daemons.
    """
    if sorted(c.slices for c in present) == sorted(wanted):
        return Redivision(kept=present, destroyed=(), added=())
    best: Redivision | None = None
    for bits in range(1 << len(present)):
        kept = tuple(c for i, c in enumerate(present) if bits >> i & 1)
        added = _missing(kept, wanted)
        if added is None or not _fits_beside(profile, added, kept, aligned):
            continue
        gone = tuple(c for i, c in enumerate(present) if not bits >> i & 1)
        candidate = Redivision(kept=kept, destroyed=gone, added=added)
        if best is None or _cost(candidate) < _cost(best):
            best = candidate
    # Nothing kept always fits: `wanted` was checked against an empty GPU instance.
    return best or Redivision(kept=(), destroyed=present, added=wanted)


def _cost(redivision: Redivision) -> tuple[int, int, int]:
    gone = redivision.destroyed
    in_use = sum(1 for device in gone if device.usage.in_use)
    return in_use, len(gone), sum(1 for device in gone if device.mps)


def _missing(kept: tuple[ComputeInstance, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    missing = list(wanted)
    for instance in kept:
        if instance.slices not in missing:
            return None
        missing.remove(instance.slices)
    return tuple(sorted(missing, reverse=True))


def _fits_beside(
    profile: GpuInstanceProfile,
    added: tuple[int, ...],
    kept: tuple[ComputeInstance, ...],
    aligned: bool,
) -> bool:
    places = tuple(c.placement for c in kept if c.placement is not None)
    if len(places) < len(kept):  # where they lie is not known: only the sum can be judged
        return sum(added) + sum(c.slices for c in kept) <= profile.slices
    return compute_fits(profile, added, places, aligned)
