"""Names of GPUs and MIG devices for people, and the devices that such a name stands for."""

import re
from collections.abc import Iterator, Mapping

from nodeagent.plan.observed import ComputeInstance, Device, Gpu, GpuInstance, ObservedNode

DevicesByUuid = Mapping[str, tuple[Gpu, Device]]


def devices_by_uuid(observed: ObservedNode) -> DevicesByUuid:
    """Map UUIDs to GPUs without MIG and to MIG devices, each with its GPU, in the GPUs' order."""
    return {device.uuid: (gpu, device) for gpu in observed.gpus for device in gpu.devices()}


def mig_devices(gpu: Gpu) -> Iterator[tuple[GpuInstance, ComputeInstance | None]]:
    """List the MIG devices by memory slice; a GPU instance without one comes with None."""
    for instance in sorted(gpu.instances, key=lambda i: (i.placement, i.id)):
        yield from ((instance, device) for device in instance.compute or (None,))


def device_words(uuid: str, devices: DevicesByUuid) -> str:
    """Name a device: `GPU 0`, `1g.10gb at 4 of GPU 0`, or its UUID if it is not among `devices`."""
    return place_words(*devices[uuid]) if uuid in devices else uuid


def place_words(gpu: Gpu, device: Device) -> str:
    """Name a device whose GPU is known, like `device_words`."""
    whole = f"GPU {gpu.index}"
    return f"{device.profile} at {device.placement.start} of {whole}" if device.placement else whole


def gpu_of(uuid: str, devices: DevicesByUuid) -> str:
    """The UUID of the GPU of a device; "" when it is not known."""
    return devices[uuid][0].uuid if uuid in devices else ""


def devices_named(named: str, observed: ObservedNode) -> tuple[str, ...] | None:
    """The UUIDs of the devices that a user named; None when the node has no such device.

    The index or UUID of a GPU means the GPU or its MIG devices, the UUID of a MIG device that one,
    and `0:4` the MIG devices that lie on memory slice 4 of GPU 0.
    """
    if not named:
        return None
    name = named.casefold()
    index = re.fullmatch(r"[0-9]{1,4}", named)
    slot = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})", named)
    for gpu in observed.gpus:
        devices = gpu.devices()
        if (index and int(named) == gpu.index) or name == gpu.uuid.casefold():
            return tuple(device.uuid for device in devices)
        if slot and int(slot[1]) == gpu.index:
            bit = 1 << int(slot[2])
            return tuple(d.uuid for d in devices if d.placement and d.placement.mask & bit) or None
        if found := next((d.uuid for d in devices if name == d.uuid.casefold()), None):
            return (found,)
    return None
