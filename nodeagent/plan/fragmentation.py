"""How much of what would still fit on a card does not, because of where its instances lie."""

from __future__ import annotations

from functools import lru_cache

from nodeagent.plan.layouts import Card, creatable
from nodeagent.plan.observed import Gpu, GpuInstanceProfile


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
