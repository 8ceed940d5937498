"""Destroys instances, in the GPU's worker thread.

What must never happen here: that an instance in use goes, or another one than the step means.
Users are looked up before, in the GPU's own lists and from every other source; what cannot be
found out counts as in use. One look serves all that goes in the next moment, so that a user of the
last one costs the others nothing; the driver refuses for users that come later. Whether it is gone
is read back with the rest of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.errors import GpuInUse
from nodeagent.gpu.nvml_types import ComputeInstanceHandle, GpuInstanceHandle
from nodeagent.gpu.recent import KnownDevice
from nodeagent.gpu.steps.change import Change, find_instance, mig_device, otherwise
from nodeagent.gpu.usage import MigDevice, WholeGpu, merged
from nodeagent.gpu.users import ProcessLists
from nodeagent.plan.observed import GpuInstanceProfile, Placement, Usage
from nodeagent.plan.steps import DestroyComputeInstance, DestroyGpuInstance, Destruction

# For a moment after its last compute instance went, the driver may still refuse to destroy a GPU
# instance. These are the seconds between the attempts.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A compute instance that is to go."""

    id: int
    uuid: str
    handle: ComputeInstanceHandle


def insist_on_idle_devices(change: Change, steps: Sequence[Destruction]) -> None:
    """Look for the users of all that the steps take away; raises GpuInUse if there may be any."""
    for step in steps:
        doomed = [(_known(change, uuid).compute_instance, uuid) for uuid in _devices(step) if uuid]
        _insist_on_nobody_else(change, step, doomed)
    _look_for_users(change, [uuid for step in steps for uuid in _devices(step) if uuid])


def destroy_gpu_instance(change: Change, step: DestroyGpuInstance) -> None:
    """Destroy a GPU instance and the compute instances that the step names.

    Raises GpuInUse, with nothing destroyed, when any of it has users or may have.
    """
    name = f"{step.profile} at {step.placement}"
    card = change.card
    instance, profile = find_instance(card, step.instance, step.profile, step.placement)
    doomed = [_find(change, instance, step.instance, uuid) for uuid in step.devices]
    _insist_on_idle(change, step.devices)
    _insist_on_no_other(change, instance, profile, doomed)
    _insist_on_nobody_else(change, step, [(compute.id, compute.uuid) for compute in doomed])
    for compute in doomed:
        change.insist_on_time(f"destroying {name}")
        card.nvml.destroy_compute_instance(compute.handle)
        card.recent.gone([compute.uuid])
    change.insist_on_time(f"destroying {name}")
    destroy_emptied(change, instance)


def destroy_compute_instance(change: Change, step: DestroyComputeInstance) -> None:
    """Destroy one compute instance; its GPU instance stays.

    Raises GpuInUse when it has users or may have.
    """
    name = f"{step.profile} in {step.placement}"
    card = change.card
    instance, _ = find_instance(card, step.instance, step.profile, step.placement)
    doomed = _find(change, instance, step.instance, step.device)
    if doomed.id != step.compute:
        raise otherwise(
            f"{step.device} is not compute instance {step.compute} any more but {doomed.id}"
        )
    _insist_on_idle(change, [step.device])
    _insist_on_nobody_else(change, step, [(doomed.id, doomed.uuid)])
    change.insist_on_time(f"destroying {name}")
    card.nvml.destroy_compute_instance(doomed.handle)
    card.recent.gone([doomed.uuid])


def destroy_emptied(change: Change, instance: GpuInstanceHandle) -> None:
    """Destroy a GPU instance whose compute instances have just gone."""
    for pause in _PAUSES:
        try:
            return change.card.nvml.destroy_gpu_instance(instance)
        except GpuInUse:
            if not change.sleep(pause):
                raise
    return change.card.nvml.destroy_gpu_instance(instance)


def _devices(step: Destruction) -> tuple[str, ...]:
    match step:
        case DestroyGpuInstance(devices=devices):
            return devices
        case DestroyComputeInstance(device=device):
            return (device,)


# --- looking before ---------------------------------------------------------------------------


def _find(change: Change, instance: GpuInstanceHandle, instance_id: int, uuid: str) -> _Doomed:
    """The compute instance behind a MIG device."""
    if not uuid:
        raise otherwise("it has a compute instance without MIG device, whose users nobody knows")
    known = _known(change, uuid)
    if known.gpu_instance != instance_id:
        raise otherwise(f"{uuid} is not in GPU instance {instance_id} any more")
    handle = change.card.nvml.compute_instance_by_id(instance, known.compute_instance)
    return _Doomed(known.compute_instance, uuid, handle)


def _known(change: Change, uuid: str) -> KnownDevice:
    """Which compute instance the device is: as a look found it a moment ago, else asked."""
    known = change.card.recent.device(uuid)
    if known is not None:
        return known
    nvml, device = change.card.nvml, mig_device(change.card, uuid)
    return KnownDevice(nvml.gpu_instance_id(device), nvml.compute_instance_id(device), slices=0)


def _insist_on_idle(change: Change, uuids: Sequence[str]) -> None:
    """Raise GpuInUse unless a look no older than a moment found the devices idle."""
    recent = change.card.recent
    if not all(recent.is_proved_idle(uuid) for uuid in uuids):
        _look_for_users(change, uuids)


def _look_for_users(change: Change, uuids: Sequence[str]) -> None:
    """Includes devices that were proven idle with these before and are still to be destroyed."""
    card = change.card
    meant = {uuid: _known(change, uuid) for uuid in dict.fromkeys((*uuids, *card.recent.idle))}
    lists = ProcessLists(card.nvml, card.handle)
    for uuid, known in meant.items():
        usage = lists.on_instance(known.gpu_instance, known.compute_instance)
        insist_on_idle(usage, uuid)
    pairs = {(d.gpu_instance, d.compute_instance) for d in (*meant.values(), *card.recent.devices)}
    # A process on the GPU and on none of its devices may be on any of them.
    insist_on_idle(lists.on_no_instance_of(pairs), ", ".join(meant))
    card.recent.proved_idle(meant)


def _insist_on_no_other(
    change: Change,
    instance: GpuInstanceHandle,
    profile: GpuInstanceProfile,
    doomed: Sequence[_Doomed],
) -> None:
    """Somebody may have added a compute instance since; then none is to go in vain.

    An instance that is full needs no look for others.
    """
    card, nvml = change.card, change.card.nvml
    if profile.slices == 1:  # which may hold several, where the driver shares it
        whole = card.learn_whole(profile, instance)
        if len(doomed) >= max((compute.max_count for compute in whole), default=2):
            return
    else:
        seen = [card.recent.device(compute.uuid) for compute in doomed]
        if sum(device.slices for device in seen if device) >= profile.slices:
            return
    offered = card.learn_compute(profile, instance)
    if profile.slices > 1:
        slices = {compute.id: compute.slices for compute in offered}
        taken = [slices.get(nvml.compute_instance_info(d.handle).profile_id, 0) for d in doomed]
        if sum(taken) >= profile.slices:
            return
    known = {compute.id for compute in doomed}
    for compute in offered:
        for handle in nvml.compute_instances(instance, compute.id, card.room_for(profile)):
            found = nvml.compute_instance_info(handle).id
            if found not in known:
                raise otherwise(f"{profile.name} now also has compute instance {found}")


def _insist_on_nobody_else(
    change: Change, step: Destruction, doomed: Iterable[tuple[int, str]]
) -> None:
    """Raise GpuInUse for users that NVML does not see, and for devices allocated to a pod.

    `doomed` are ids and UUIDs of compute instances.
    """
    compute = step.compute if isinstance(step, DestroyComputeInstance) else None
    name = f"{step.profile} at {step.placement}"
    insist_on_idle(_known_elsewhere(change, step.instance, compute), name)
    insist_on_idle(_allocated(change, step.instance, step.placement, doomed), name)


def _known_elsewhere(change: Change, instance: int, compute: int | None) -> Usage:
    """Users of a compute instance, or of anything in a GPU instance, that NVML does not see."""
    known = change.card.identity()
    device = MigDevice(known.uuid, known.minor, instance, compute)
    usage = Usage()
    for reading in change.readings:
        usage = merged(usage, reading.users(device))
    return usage


def _allocated(
    change: Change, instance: int, place: Placement, doomed: Iterable[tuple[int, str]]
) -> Usage:
    """Who was given one of the devices, their GPU instance, or the GPU that they are on."""
    if change.allocations is None:
        return Usage()
    known = change.card.identity()
    gpu, minor = known.uuid, known.minor
    usage = change.allocations.users_of_gpu(WholeGpu(gpu, minor))
    devices = [MigDevice(gpu, minor, instance, number, uuid, place) for number, uuid in doomed]
    for device in devices or [MigDevice(gpu, minor, instance, None, "", place)]:
        usage = merged(usage, change.allocations.users(device))
    return usage


def insist_on_idle(usage: Usage, name: str) -> None:
    """Raise GpuInUse unless it is certain that nobody is there."""
    if usage.in_use:
        raise GpuInUse(
            f"{name} is not destroyed: it is in use by {usage}",
            code=None,
            name="InUse",
            call="",
            remedy="end what uses it, or wait for it",
        )
