"""Which GPU instances can lie side by side on a card, and what still fits.

Everything is derived from what the driver reports of the card: placements in memory slices, and
the media engines each profile takes. Two instances exclude each other when their slices overlap
or when together they need more engines of a kind than the card is known to have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Gpu, GpuInstanceProfile, mask_of
from nodeagent.structs import Struct

# Copy engines are shared when they run short; media engines are not.
_MEDIA_ENGINES = ("decoder", "encoder", "jpeg", "ofa")


class CardProfile(Struct, frozen=True):
    """One profile for the search: `masks` by start, `engines` as a vector, how many at most."""

    profile: GpuInstanceProfile
    masks: Mapping[int, int]
    engines: tuple[int, ...]
    limit: int

    @property
    def name(self) -> str:
        return self.profile.name


class Card(Struct, frozen=True):
    """The profiles of a card by name, largest first, and its media engines.

    `slots` is the number of memory slices. `aligned` says how compute slots are handed out in a
    GPU instance: as an aligned tree (assumed from Hopper on), else by first fit.
    """

    profiles: Mapping[str, CardProfile]
    engines: tuple[int, ...]
    slots: int
    aligned: bool

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        return _card(gpu.profiles, gpu.compute_capability >= (9, 0))

    def spare(self, names: Iterable[str]) -> tuple[int, ...] | None:
        """How many more of each profile there could be beside `names`, slices aside.

        None when already these cannot be there at once.
        """
        counts = Counter(names)
        left = list(self.engines)
        for name, count in counts.items():
            if count > self.profiles[name].limit:
                return None
            for kind, need in enumerate(self.profiles[name].engines):
                left[kind] -= count * need
        if min(left) < 0:
            return None
        return tuple(
            min(
                [p.limit - counts[name]]
                + [have // need for have, need in zip(left, p.engines, strict=True) if need]
            )
            for name, p in self.profiles.items()
        )

    def room(self, occupied: int, spare: tuple[int, ...]) -> tuple[int, ...]:
        """How many more of each profile fit (each taken alone), largest profile first.

        `occupied` are the slices taken as bits, `spare` what the instances there leave.
        """
        return tuple(
            min(most, sum(1 for mask in profile.masks.values() if not mask & occupied))
            for profile, most in zip(self.profiles.values(), spare, strict=True)
        )


@lru_cache(maxsize=64)
def _card(profiles: tuple[GpuInstanceProfile, ...], aligned: bool) -> Card:
    table: dict[str, CardProfile] = {}
    # The driver does not report a card's engines. One instance of any profile is possible, and so
    # are as many of a plain profile as there are places; what these take, the card surely has.
    have = [0] * len(_MEDIA_ENGINES)
    for profile in sorted(profiles, key=_size_order):
        masks = {place.start: place.mask for place in sorted(profile.placements)}
        engines = tuple(getattr(profile.engines, kind) for kind in _MEDIA_ENGINES)
        plain = not ProfileName.parse(profile.name).attributes
        # For plain profiles the placements alone decide; the driver's own count is wrong on some
        # cards (on A30, according to NVIDIA's mig-parted). Engines limit the others (+me).
        limit = len(profile.placements)
        if not plain:
            limit = min(profile.max_count, limit)
        table[profile.name] = CardProfile(profile, masks, engines, limit)
        times = len(masks) if plain else 1
        have = [max(a, times * b) for a, b in zip(have, engines, strict=True)]
    slots = max((mask.bit_length() for p in table.values() for mask in p.masks.values()), default=0)
    return Card(table, tuple(have), slots, aligned)


def _size_order(profile: GpuInstanceProfile) -> tuple[int, int, int, str]:
    """The largest profile first, in an order that is always the same."""
    return (-profile.slices, -profile.memory, -profile.multiprocessors, profile.name)


def free_slots(gpu: Gpu) -> tuple[int, ...]:
    """The memory slices where something new could lie: no GPU instance occupies them, and they are
    not unhealthy (none while MIG is off).
    """
    if not gpu.in_mig_mode or gpu.health_limits.whole:
        return ()
    occupied = _occupied(gpu)
    return tuple(slot for slot in range(Card.of(gpu).slots) if not occupied >> slot & 1)


def creatable(gpu: Gpu) -> dict[str, int]:
    """How many more of each profile fit now, each taken alone; profiles with no room left out."""
    if not gpu.in_mig_mode or gpu.health_limits.whole:
        return {}
    card = Card.of(gpu)
    spare = card.spare(i.profile for i in gpu.instances if i.profile in card.profiles)
    if spare is None:  # the hardware holds more than was known to be possible: promise nothing
        return {}
    rooms = card.room(_occupied(gpu), spare)
    return {name: room for name, room in zip(card.profiles, rooms, strict=True) if room}


def _occupied(gpu: Gpu) -> int:
    """The mask of the slices on which nothing can be placed, as they are taken or unhealthy."""
    return gpu.health_limits.slices | mask_of(i.placement for i in gpu.instances)


def fragmentation(gpu: Gpu) -> float | None:
    """The share of further instances that only another arrangement of those that are there would
    leave room for (0 to 1). Each profile is taken alone, at its own best arrangement.

    0 where nothing more fits anyhow; None outside MIG mode, and where the card has what is not
    known of it. What touches unhealthy memory slices stays where it is.
    """
    card = Card.of(gpu)
    names = [instance.profile for instance in gpu.instances]
    if not gpu.in_mig_mode or gpu.health_limits.whole or not card.profiles.keys() >= set(names):
        return None
    sick = fixed = gpu.health_limits.slices
    movable: list[str] = []
    for instance in gpu.instances:
        if instance.placement.mask & sick:
            fixed |= instance.placement.mask
        else:
            movable.append(instance.profile)
    best = _best_room(
        gpu.profiles, gpu.compute_capability, tuple(sorted(names)), tuple(sorted(movable)), fixed
    )
    return 1 - sum(creatable(gpu).values()) / best if best else 0.0


@lru_cache(maxsize=512)
def _best_room(
    profiles: tuple[GpuInstanceProfile, ...],
    compute_capability: tuple[int, int],
    names: tuple[str, ...],
    movable: tuple[str, ...],
    fixed: int,
) -> int:
    """How many more instances fit, summed over the profiles; `fixed` are slices as bits."""
    card = Card.of(Gpu(0, "", compute_capability=compute_capability, profiles=profiles))
    spare = card.spare(names)
    if spare is None:
        return 0
    arrangements = {fixed}
    for name in movable:
        masks = card.profiles[name].masks.values()
        arrangements = {had | mask for had in arrangements for mask in masks if not had & mask}
    rooms = [card.room(occupied, spare) for occupied in arrangements]
    return sum(map(max, zip(*rooms, strict=True))) if rooms else 0
