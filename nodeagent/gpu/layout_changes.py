"""Reads what was made and destroyed on a GPU since it was observed, in a few driver calls.

All that has to be seen is that the other GPU instances still have their ids and places: what is in
them was read before. Where that is not so, the caller reads the whole GPU again.
"""

from collections.abc import Collection, Mapping

from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.observation import find_instances, only_placement
from nodeagent.gpu.recent import KnownDevice
from nodeagent.gpu.users import ProcessLists
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.structs import replace


def read_changes(
    gpu: GpuDevice,
    before: Gpu,
    made: Mapping[Placement, int],
    gone: Collection[int],
    *,
    users: bool = False,
) -> Gpu | None:
    """Return `before` without the GPU instances whose ids are `gone`, and with one at each place in
    `made` (with the id of its profile), filled by a single MIG device; None where more than that
    may have changed. Raises DriverError.

    After steps only the profiles in use before or made are asked for: all were, just before, and
    what another program makes meanwhile is seen when all are asked for again. Devices of other
    instances are as `before`, and so are their users unless `users` says to read those that NVML
    knows. New devices have no users yet.
    """
    if gpu.identity().uuid != before.uuid:
        return None
    # A step that made or destroyed instances has shown that MIG is on.
    if not (made or gone) and gpu.mode() != before.mig:
        return None
    if not before.in_mig_mode:
        return None if made or gone or users else before
    kept = [instance for instance in before.instances if instance.id not in gone]
    earlier = {(i.id, i.profile_id, i.placement) for i in kept}
    present = {i.profile_id for i in before.instances}.union(made.values())
    instances = find_instances(gpu, present if made or gone else None)
    found = {(f.info.id, f.profile.id, f.info.placement): f for f in instances}
    new = {f.info.id: f for key, f in found.items() if key not in earlier}
    if earlier - found.keys() or {f.info.placement: f.profile.id for f in new.values()} != made:
        return None
    known = {device.uuid for instance in kept for device in instance.compute}
    described = list(kept)
    # Drivers list devices by GPU instance id: behind those with lower ids first, then all others.
    first = sum(instance.id < min(new, default=0) for instance in kept)
    devices = gpu.mig_devices(first)
    while new and (device := next(devices, None)) is not None:
        if (uuid := nvml.uuid(device)) in known:
            continue
        added = new.pop(nvml.gpu_instance_id(device), None)
        if added is None or not gpu.profiles.holds_one(added.profile):
            return None
        slices = nvml.compute_slices(device) if added.profile.slices > 1 else 1
        if slices != added.profile.slices:
            return None
        compute = nvml.compute_instance_id(device)
        ids = KnownDevice(added.info.id, compute, slices, is_alone=slices == 1)
        gpu.recent.add(uuid, ids)
        info, name = added.info, added.profile.name
        single = ComputeInstance(compute, name, slices, uuid, only_placement(gpu, added.profile))
        described.append(GpuInstance(info.id, added.profile.id, name, info.placement, (single,)))
    if new:
        return None
    described.sort(key=lambda instance: (instance.placement, instance.id))
    now = replace(before, profiles=gpu.profiles.known, instances=tuple(described))
    return _with_users(gpu, now) if users else now


def _with_users(gpu: GpuDevice, now: Gpu) -> Gpu:
    """Add users by the GPU's own lists; where these are incomplete, all users are unknown."""
    lists = ProcessLists(gpu.handle)
    known = [(instance.id, device.id) for instance, device in now.mig_devices()]
    return replace(now, usage=lists.on_no_instance_of(known)).with_mig_devices(
        lambda instance, device: replace(device, usage=lists.on_instance(instance.id, device.id))
    )
