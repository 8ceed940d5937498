"""Where a device is, and which one a person means: GPUs and the MIG devices on them, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.plan.observed import Access, Gpu, ObservedNode

if TYPE_CHECKING:  # it takes long to import, and not every command has health
    from nodeagent.health.state import HealthState


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device of this UUID is: on which GPU, and for a MIG device, what of it."""

    device: str
    gpu: Gpu
    profile: str = ""
    start: int = 0
    size: int = 0

    @property
    def words(self) -> str:
        """`GPU 3`, or `3g.40gb at 4 of GPU 0`."""
        whole = f"GPU {self.gpu.index}"
        return f"{self.profile} at {self.start} of {whole}" if self.profile else whole


def places(observed: ObservedNode) -> tuple[Place, ...]:
    """Every device that a daemon can be for: the GPUs, and the MIG devices on them."""
    return tuple(place for gpu in observed.gpus for place in _places_on(gpu))


def gpus_not_read(observed: ObservedNode, health: HealthState | None) -> tuple[Gpu, ...]:
    """The GPUs that answer and of which no check has read anything yet; none without checks."""
    if health is None or health.at is None:
        return ()
    judged = {uuid for uuid, past in health.gpus.items() if past.checked}
    return tuple(g for g in observed.gpus if g.access is Access.OK and g.uuid not in judged)


def not_read_words(gpus: tuple[Gpu, ...]) -> str:
    """`the health of GPUs 0 and 1 was not read yet`."""
    *others, last = (str(gpu.index) for gpu in gpus)
    named = f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"
    return f"the health of {named} was not read yet"


def devices_named(named: str, observed: ObservedNode) -> tuple[str, ...] | None:
    """The UUIDs of what a person calls a device; None when the node has no such device.

    By index or UUID a GPU with its MIG devices, by UUID a MIG device, by `0:4` the MIG devices
    that lie on memory slice 4 of GPU 0.
    """
    slot = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})", named)
    for gpu in observed.gpus:
        there = _places_on(gpu)
        if named.isascii() and named.isdigit() and len(named) < 5 and int(named) == gpu.index:
            return tuple(place.device for place in there)
        if slot and int(slot[1]) == gpu.index:
            at = int(slot[2])
            on = [p for p in there if p.profile and p.start <= at < p.start + p.size]
            return tuple(place.device for place in on) or None
        if named and named.casefold() == gpu.uuid.casefold():
            return tuple(place.device for place in there)
        for place in there:
            if named.casefold() == place.device.casefold():
                return (place.device,)
    return None


def device_words(device: str, observed: ObservedNode) -> str:
    """`GPU 0`, `1g.10gb at 4 of GPU 0`; the UUID where nothing more is known of it."""
    return next((p.words for p in places(observed) if p.device == device), device)


def _places_on(gpu: Gpu) -> tuple[Place, ...]:
    return (
        Place(gpu.uuid, gpu),
        *(
            Place(
                device.uuid, gpu, device.profile, instance.placement.start, instance.placement.size
            )
            for instance in gpu.instances
            for device in instance.compute
        ),
    )
