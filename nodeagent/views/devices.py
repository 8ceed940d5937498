"""Where a device is, and which one a person means: GPUs and the MIG devices on them, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodeagent.plan.observed import ComputeInstance, Device, Gpu, GpuInstance, ObservedNode

Located = Mapping[str, tuple[Gpu, Device]]


def located(observed: ObservedNode) -> Located:
    """Map UUIDs to every device that a daemon can be for, in the order of the GPUs."""
    return {device.uuid: (gpu, device) for gpu in observed.gpus for device in gpu.devices()}


def mig_devices(gpu: Gpu) -> Iterator[tuple[GpuInstance, ComputeInstance | None]]:
    """Iterate by slice over MIG devices and half-made GPU instances, which have none."""
    for instance in sorted(gpu.instances, key=lambda i: (i.placement, i.id)):
        yield from ((instance, device) for device in instance.compute or (None,))


def device_words(device: str, where: Located) -> str:
    """`GPU 0`, `1g.10gb at 4 of GPU 0`; the UUID where nothing more is known of it."""
    return place_words(*where[device]) if device in where else device


def place_words(gpu: Gpu, device: Device) -> str:
    """Name a device whose GPU is known, like `device_words`."""
    whole = f"GPU {gpu.index}"
    return f"{device.profile} at {device.placement.start} of {whole}" if device.placement else whole


def gpu_of(device: str, where: Located) -> str:
    """The UUID of its GPU; "" when it is not known."""
    return where[device][0].uuid if device in where else ""


def devices_named(named: str, observed: ObservedNode) -> tuple[str, ...] | None:
    """The UUIDs of what a person calls a device; None when the node has no such device.

    By index or UUID a GPU with its MIG devices, by UUID a MIG device, by `0:4` the MIG devices
    that lie on memory slice 4 of GPU 0.
    """
    if not named:
        return None
    index = re.fullmatch(r"[0-9]{1,4}", named)
    slot = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})", named)
    for gpu in observed.gpus:
        there = gpu.devices()
        if (index and int(named) == gpu.index) or _same(named, gpu.uuid):
            return tuple(device.uuid for device in there)
        if slot and int(slot[1]) == gpu.index:
            at = 1 << int(slot[2])
            return tuple(d.uuid for d in there if d.placement and d.placement.mask & at) or None
        if found := next((d.uuid for d in there if _same(named, d.uuid)), None):
            return (found,)
    return None


def _same(named: str, uuid: str) -> bool:
    return named.casefold() == uuid.casefold()
