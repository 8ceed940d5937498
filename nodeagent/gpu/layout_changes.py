"""Reads what was made and destroyed on a GPU since it was observed, in a few driver calls.

That the other GPU instances still are there, with their ids and places, is enough to know then:
what is in them, and who uses it, was known before. Where it is not as expected, all is to be read
anew, which the caller does.
"""

from __future__ import annotations

from collections.abc import Collection

from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import InstanceInfo
from nodeagent.gpu.observation import find_instances, only_placement
from nodeagent.gpu.recent import KnownDevice
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, GpuInstanceProfile, Placement
from nodeagent.structs import replace


def read_changes(
    gpu: GpuDevice, before: Gpu, made: Collection[Placement], gone: Collection[int]
) -> Gpu | None:
    """`before` without the GPU instances of these ids, and with some at the places where they were
    `made`, each with one MIG device that has all of it; None where more than that may have changed.
    Raises DriverError.

    Users and devices of the others are as they were `before`; what is new has no users yet.
    """
    mode = gpu.mode() if gpu.identity().uuid == before.uuid else None
    if mode is None or not mode.current or mode != before.mig:
        return None
    kept = [one for one in before.instances if one.id not in gone]
    earlier = {(one.id, one.profile_id, one.placement) for one in kept}
    found = {(f.info.id, f.profile.id, f.info.placement): f for f in find_instances(gpu)}
    new = {key[0]: found[key] for key in found.keys() - earlier}
    if earlier - found.keys() or {one.info.placement for one in new.values()} != set(made):
        return None
    known = {device.uuid for one in kept for device in one.compute}
    instances = list(kept)
    # Drivers list devices by the ids of their GPU instances; if not, all indices are tried.
    devices = gpu.mig_devices(sum(one.id < min(new, default=0) for one in kept))
    while new and (device := next(devices, None)) is not None:
        if (uuid := nvml.uuid(device)) in known:
            continue
        one = new.pop(nvml.gpu_instance_id(device), None)
        if one is None or not gpu.holds_one(one.profile):
            return None
        slices = nvml.compute_slices(device) if one.profile.slices > 1 else 1
        if slices != one.profile.slices:
            return None
        compute = nvml.compute_instance_id(device)
        gpu.recent.add(one.info.id, one.handle, uuid, KnownDevice(one.info.id, compute, slices))
        place = only_placement(gpu, one.profile)
        instances.append(_described(one.info, one.profile, compute, uuid, place))
    if new:
        return None
    instances.sort(key=lambda one: (one.placement, one.id))
    return replace(before, profiles=gpu.profiles, instances=tuple(instances))


def _described(
    info: InstanceInfo,
    profile: GpuInstanceProfile,
    compute: int,
    uuid: str,
    place: Placement | None,
) -> GpuInstance:
    device = ComputeInstance(
        id=compute, profile=profile.name, slices=profile.slices, uuid=uuid, placement=place
    )
    return GpuInstance(info.id, profile.id, profile.name, info.placement, (device,))
