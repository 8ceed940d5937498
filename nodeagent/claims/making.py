"""How a claim's record changes while its devices are made. Pure."""

from __future__ import annotations

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, Phase
from nodeagent.plan.observed import Gpu
from nodeagent.structs import replace


def without_ids(record: ClaimRecord) -> ClaimRecord:
    """Without ids, which count in one run of the machine alone."""
    devices = (
        replace(device, before=None, instance=None, compute=None, uuid="")
        for device in record.devices
    )
    return replace(record, devices=tuple(devices))


def begun(record: ClaimRecord, gpu: Gpu, boot_id: str) -> ClaimRecord:
    """The record before the claim's devices on the GPU are made, or made again."""
    if record.boot_id != boot_id:
        record = replace(without_ids(record), boot_id=boot_id, phase=Phase.INTENT)
    here = tuple((instance.id, instance.placement) for instance in gpu.instances)
    places = {placement for _, placement in here}

    def begun_device(device: ClaimedDevice) -> ClaimedDevice:
        gone = device.instance is not None and device.placement not in places
        if device.gpu == gpu.uuid and (device.before is None or gone):
            return replace(device, before=here, instance=None, compute=None, uuid="")
        return device

    devices = tuple(map(begun_device, record.devices))
    if devices == record.devices:
        return record
    return replace(record, devices=devices, phase=Phase.INTENT)


def with_instances(record: ClaimRecord, gpu: Gpu) -> ClaimRecord:
    """With the ids of what was made on the GPU, as it was read back."""

    def found(device: ClaimedDevice) -> ClaimedDevice:
        for instance in gpu.instances if device.gpu == gpu.uuid else ():
            if instance.compute and device.is_made and device.was_made_as(instance):
                one = instance.compute[0]
                return replace(device, instance=instance.id, compute=one.id, uuid=one.uuid)
        return device

    return replace(record, devices=tuple(map(found, record.devices)))
