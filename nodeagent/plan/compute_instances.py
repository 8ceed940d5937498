"""How GPU instances are divided into compute instances.

A document asks for devices such as three `1c.3g.40gb`; which of them share a GPU instance is the
agent's to choose. The driver lists the compute profiles of a GPU instance profile only once such
an instance exists; until then the documented rules decide, and where architectures differ, the
stricter one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.observed import ComputeInstance, GpuInstanceProfile, Placement, mask_of
from nodeagent.structs import Struct

ANYWHERE = -1  # as `Division.start`


class Division(Struct, frozen=True, order=True):
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
    profile: GpuInstanceProfile, sizes: tuple[int, ...], occupied: int, aligned: bool
) -> bool:
    """Whether compute instances of `sizes`, created largest first, fit beside the `occupied`
    compute slots (bits).

    `aligned`: compute slots are handed out as an aligned binary tree (Hopper and later), else by
    first fit (Ampere); from NVIDIA's open kernel modules. Used as long as the driver does not
    list the placements.
    """
    if not sizes:
        return True
    return any(
        compute_fits(profile, sizes[1:], occupied | place.mask, aligned)
        for place in _compute_placements(profile, sizes[0], aligned)
        if not place.mask & occupied
    )


def _compute_placements(
    profile: GpuInstanceProfile, slices: int, aligned: bool
) -> Sequence[Placement]:
    known = {place for c in profile.compute if c.slices == slices for place in c.placements}
    if known:
        return sorted(known)
    if not aligned:
        return [Placement(s, slices) for s in range(profile.slices - slices + 1)]
    size = 1 << (slices - 1).bit_length()
    starts = range(0, profile.slices, size)
    # A slot beyond the GPU instance's own slices exists in the tree, but not on the chip.
    return [Placement(s, size) for s in starts if s + slices <= profile.slices]


def divisions(
    profile: GpuInstanceProfile, wanted: Sequence[WantedInstance], *, aligned: bool
) -> list[tuple[Division, ...]]:
    """Every way to gather `wanted` devices of one profile into GPU instances."""

    def gather(
        items: Sequence[tuple[int, int]], gathered: tuple[Division, ...]
    ) -> Iterator[tuple[Division, ...]]:
        if not items:
            yield tuple(sorted(gathered))
            return
        (negative, start), *rest = items
        for index, division in enumerate(gathered):
            joined = _joined(profile, division, -negative, start, aligned)
            if joined and division not in gathered[:index]:
                yield from gather(rest, (*gathered[:index], joined, *gathered[index + 1 :]))
        if len(gathered) < len(profile.placements):
            yield from gather(rest, (*gathered, Division(profile.name, start, (-negative,))))

    items = sorted((-w.slices, ANYWHERE if w.start is None else w.start) for w in wanted)
    return list(dict.fromkeys(gather(items, ())))


def _joined(
    profile: GpuInstanceProfile, division: Division, slices: int, start: int, aligned: bool
) -> Division | None:
    """The division with one more compute instance, if that can be."""
    if ANYWHERE not in (division.start, start) and division.start != start:
        return None
    sizes = tuple(sorted((*division.compute, slices), reverse=True))
    if sum(sizes) > profile.slices or not compute_fits(profile, sizes, 0, aligned):
        return None
    return Division(profile.name, max(division.start, start), sizes)


class Redivision(Struct, frozen=True):
    """How an existing GPU instance becomes what is wanted: what stays, goes and comes."""

    kept: tuple[ComputeInstance, ...]
    destroyed: tuple[ComputeInstance, ...]
    added: tuple[int, ...]

    @property
    def cost(self) -> tuple[int, int, int]:
        """Devices in use that go, devices that go, MPS daemons that end."""
        in_use = sum(1 for device in self.destroyed if device.usage.in_use)
        return in_use, len(self.destroyed), sum(1 for device in self.destroyed if device.mps)


def redivide(
    profile: GpuInstanceProfile,
    present: tuple[ComputeInstance, ...],
    wanted: tuple[int, ...],
    *,
    aligned: bool,
) -> Redivision:
    """The way of the least cost from the `present` compute instances to the `wanted` sizes."""
    nothing_kept = Redivision(kept=(), destroyed=present, added=wanted)
    if not present:
        return nothing_kept
    if sorted(c.slices for c in present) == sorted(wanted):
        return Redivision(kept=present, destroyed=(), added=())

    def ways() -> Iterator[Redivision]:
        for bits in range(1 << len(present)):
            kept = tuple(c for i, c in enumerate(present) if bits >> i & 1)
            added = Counter(wanted)
            added.subtract(c.slices for c in kept)
            sizes = tuple(sorted(added.elements(), reverse=True))
            if min(added.values()) >= 0 and _fits_beside(profile, sizes, kept, aligned):
                gone = tuple(c for i, c in enumerate(present) if not bits >> i & 1)
                yield Redivision(kept, gone, sizes)

    # Nothing kept always fits: `wanted` was checked against an empty GPU instance.
    return min(ways(), key=lambda way: way.cost, default=nothing_kept)


def _fits_beside(
    profile: GpuInstanceProfile,
    added: tuple[int, ...],
    kept: tuple[ComputeInstance, ...],
    aligned: bool,
) -> bool:
    places = [device.placement for device in kept if device.placement]
    if len(places) < len(kept):  # where one lies is not known: only the sum can be judged
        return sum(added) + sum(c.slices for c in kept) <= profile.slices
    return compute_fits(profile, added, mask_of(places), aligned)
