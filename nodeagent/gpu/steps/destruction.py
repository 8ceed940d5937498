"""Destroys instances, in the GPU's worker thread.

What must never happen here: that an instance in use goes, or another one than the step means.
Users are looked up right before, on the MIG devices themselves and from every other source; what
cannot be found out counts as in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodeagent.errors import DriverError, GpuInUse
from nodeagent.gpu.nvml_errors import NOT_FOUND
from nodeagent.gpu.nvml_types import ComputeInstanceHandle, GpuInstanceHandle
from nodeagent.gpu.steps.change import Change, find_instance, mig_device, otherwise
from nodeagent.gpu.usage import MigDevice, WholeGpu, merged
from nodeagent.gpu.users import ProcessLists
from nodeagent.planning.observed import GpuInstanceProfile, Placement, Usage
from nodeagent.planning.steps import DestroyComputeInstance, DestroyGpuInstance

# For a moment after its last compute instance went, the driver may still refuse to destroy a GPU
# instance. These are the seconds between the attempts.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A compute instance that is to go."""

    id: int
    uuid: str
    handle: ComputeInstanceHandle


def destroy_gpu_instance(change: Change, step: DestroyGpuInstance) -> None:
    """Destroy a GPU instance and the compute instances that the step names.

    Raises GpuInUse, with nothing destroyed, when any of it has users or may have.
    """
    name = f"{step.profile} at {step.placement}"
    nvml = change.card.nvml
    instance, profile = find_instance(change.card, step.instance, step.profile, step.placement)
    doomed = [_find_idle(change, instance, step.instance, uuid) for uuid in step.devices]
    _insist_on_no_other(change, instance, profile, doomed)
    insist_on_idle(_known_elsewhere(change, step.instance, None), name)
    insist_on_idle(_allocated(change, step.instance, step.placement, doomed), name)
    for compute in doomed:
        change.insist_on_time(f"destroying {name}")
        nvml.destroy_compute_instance(compute.handle)
    change.insist_on_time(f"destroying {name}")
    destroy_emptied(change, instance)
    if _exists(lambda: nvml.gpu_instance_by_id(change.card.handle, step.instance)):
        raise otherwise(f"{name} was destroyed, but there still is a GPU instance {step.instance}")


def destroy_compute_instance(change: Change, step: DestroyComputeInstance) -> None:
    """Destroy one compute instance; its GPU instance stays.

    Raises GpuInUse when it has users or may have.
    """
    name = f"{step.profile} in {step.placement}"
    nvml = change.card.nvml
    instance, _ = find_instance(change.card, step.instance, step.profile, step.placement)
    doomed = _find_idle(change, instance, step.instance, step.device)
    if doomed.id != step.compute:
        raise otherwise(
            f"{step.device} is not compute instance {step.compute} any more but {doomed.id}"
        )
    insist_on_idle(_known_elsewhere(change, step.instance, step.compute), name)
    insist_on_idle(_allocated(change, step.instance, step.placement, [doomed]), name)
    change.insist_on_time(f"destroying {name}")
    nvml.destroy_compute_instance(doomed.handle)
    if _exists(lambda: nvml.compute_instance_by_id(instance, step.compute)):
        raise otherwise(f"{name} was destroyed, but there still is a compute instance of its id")


def destroy_emptied(change: Change, instance: GpuInstanceHandle) -> None:
    """Destroy a GPU instance whose compute instances have just gone."""
    for pause in _PAUSES:
        try:
            return change.card.nvml.destroy_gpu_instance(instance)
        except GpuInUse:
            if not change.sleep(pause):
                raise
    return change.card.nvml.destroy_gpu_instance(instance)


# --- looking before ---------------------------------------------------------------------------


def _find_idle(change: Change, instance: GpuInstanceHandle, instance_id: int, uuid: str) -> _Doomed:
    """The compute instance behind a MIG device that is proven to have no users."""
    nvml = change.card.nvml
    if not uuid:
        raise otherwise("it has a compute instance without MIG device, whose users nobody knows")
    device = mig_device(change.card, uuid)
    if nvml.gpu_instance_id(device) != instance_id:
        raise otherwise(f"{uuid} is not in GPU instance {instance_id} any more")
    insist_on_idle(ProcessLists(nvml, device).on_all(), uuid)
    compute_id = nvml.compute_instance_id(device)
    return _Doomed(compute_id, uuid, nvml.compute_instance_by_id(instance, compute_id))


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
    offered = card.learn_compute(profile, instance)
    if len(doomed) >= max((compute.max_count for compute in offered), default=0):
        return
    if profile.slices > 1:  # a single slice may hold several, where the driver shares it
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


def _known_elsewhere(change: Change, instance: int, compute: int | None) -> Usage:
    """Users of a compute instance, or of anything in a GPU instance, that NVML does not see."""
    known = change.card.identity()
    device = MigDevice(known.uuid, known.minor, instance, compute)
    usage = Usage()
    for reading in change.readings:
        usage = merged(usage, reading.users(device))
    return usage


def _allocated(change: Change, instance: int, place: Placement, doomed: Sequence[_Doomed]) -> Usage:
    """Who was given one of the devices, their GPU instance, or the GPU that they are on."""
    if change.allocations is None:
        return Usage()
    known = change.card.identity()
    gpu, minor = known.uuid, known.minor
    usage = change.allocations.users_of_gpu(WholeGpu(gpu, minor))
    devices = [MigDevice(gpu, minor, instance, d.id, d.uuid, place) for d in doomed]
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


# --- reading back -----------------------------------------------------------------------------


def _exists(find: Callable[[], object]) -> bool:
    try:
        find()
    except DriverError as error:
        if error.code != NOT_FOUND:
            raise
        return False
    return True
