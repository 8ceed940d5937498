"""Creates and destroys GPU instances and compute instances, in the GPU's worker thread.

What must never happen here: that an instance in use goes, or another one than the step means.
Users are looked up before, in the GPU's own lists and from every other source; what cannot be
found out counts as in use. One reading serves all that goes in the next moment, so that a
user of the last one costs the others nothing; the driver refuses for users that come later. A
creation that fails half-way is undone. The result is read back with the rest of the GPU.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from nodeagent.errors import DriverError, GpuInUse
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import ComputeInstanceHandle, GpuInstanceHandle
from nodeagent.gpu.nvml_errors import with_subject
from nodeagent.gpu.profiles import room_for
from nodeagent.gpu.recent import KnownDevice
from nodeagent.gpu.steps.change import Change, find_instance, in_use, mig_device, other_than_planned
from nodeagent.gpu.users import GpuRef, MigDeviceRef, ProcessLists
from nodeagent.plan.observed import ComputeInstanceProfile, GpuInstanceProfile
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Destruction,
)
from nodeagent.plan.users import Usage
from nodeagent.structs import Struct

# For a moment after its last compute instance went, the driver may still refuse to destroy a GPU
# instance. These are the seconds between the attempts.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class _Doomed(Struct, frozen=True):
    """A compute instance that is to go."""

    id: int
    uuid: str
    handle: ComputeInstanceHandle


# --- creating -------------------------------------------------------------------------------------


def create_gpu_instance(change: Change, step: CreateGpuInstance) -> None:
    """Create a GPU instance at its placement and the compute instances in it, largest first.

    When any of it fails, what this step made is taken away again before the error is raised.
    """
    gpu = change.gpu
    profile = gpu.profile(step.profile_id)
    if profile is None or profile.name != step.profile:
        raise other_than_planned("noProfile", profile=step.profile, id=step.profile_id)
    change.require_time(f"creating {step.profile} at {step.placement}")
    instance = nvml.create_gpu_instance(gpu.handle, step.profile_id, step.placement)
    try:
        for slices in step.compute:
            _create_compute(change, instance, profile, slices)
    except DriverError as error:
        raise _taken_back(change, instance, profile, error) from error


def create_compute_instance(change: Change, step: CreateComputeInstance) -> None:
    """Add a compute instance to a GPU instance that is there."""
    instance, profile = find_instance(change.gpu, step.instance, step.profile, step.placement)
    change.require_time(f"creating {step.profile}")
    _create_compute(change, instance, profile, step.slices)


def _create_compute(
    change: Change, instance: GpuInstanceHandle, profile: GpuInstanceProfile, slices: int
) -> None:
    """Create one compute instance. One with all slices of its GPU instance is read back with the
    whole GPU. A part, of which there are several kinds, is checked here and destroyed if wrong.
    """
    gpu = change.gpu
    if slices == profile.slices:
        wanted = compute_profile_for(profile, gpu.profiles.learn_whole(profile, instance), slices)
        nvml.create_compute_instance(instance, wanted.id)
        return
    wanted = compute_profile_for(profile, gpu.profiles.learn_compute(profile, instance), slices)
    compute = nvml.create_compute_instance(instance, wanted.id)
    info = change.read_back(lambda: nvml.compute_instance_info(compute))
    if info.profile_id != wanted.id:
        nvml.destroy_compute_instance(compute)
        raise other_than_planned(
            "otherCompute", profile=profile.name, wanted=wanted.id, found=info.profile_id
        )


def compute_profile_for(
    profile: GpuInstanceProfile, offered: Sequence[ComputeInstanceProfile], slices: int
) -> ComputeInstanceProfile:
    """The compute profile that `slices` of a GPU instance mean.

    Several may have the same number of slices: in a 1g of double memory on Hopper, one gives all
    of its multiprocessors and one only those of a plain 1g. Who asks for all slices gets all
    multiprocessors; who asks for a part gets the one of which the most fit.
    """
    fitting = [compute for compute in offered if compute.slices == slices]
    if not fitting:
        sizes = ", ".join(str(size) for size in sorted({c.slices for c in offered})) or "none"
        raise other_than_planned("noSlices", slices=slices, profile=profile.name, sizes=sizes)
    if slices == profile.slices:
        return max(fitting, key=lambda compute: (compute.multiprocessors, -compute.id))
    return max(fitting, key=lambda compute: (compute.max_count, -compute.id))


def _taken_back(
    change: Change, instance: GpuInstanceHandle, profile: GpuInstanceProfile, error: DriverError
) -> DriverError:
    """Remove a GPU instance made just now, with all in it; the error to raise then."""
    room = room_for(profile)
    try:
        for compute in change.gpu.profiles.compute_of(profile.id):
            for handle in nvml.compute_instances(instance, compute.id, room):
                nvml.destroy_compute_instance(handle)
        destroy_emptied(change, instance)
    except DriverError as left:
        return with_subject(f"{profile.name} is left half-made, because also {left.message}", error)
    return error


# --- destroying -----------------------------------------------------------------------------------


def require_idle_devices(change: Change, steps: Sequence[Destruction]) -> None:
    """Look for the users of all that the steps take away; raises GpuInUse if there may be any."""
    for step in steps:
        doomed = [(_known(change, uuid).compute_instance, uuid) for uuid in _devices(step) if uuid]
        _require_no_other_user(change, step, doomed)
    _look_for_users(change, [uuid for step in steps for uuid in _devices(step) if uuid])


def destroy_gpu_instance(change: Change, step: DestroyGpuInstance) -> None:
    """Destroy a GPU instance and the compute instances that the step names.

    Raises GpuInUse, with nothing destroyed, when any of it has users or may have.
    """
    name = f"{step.profile} at {step.placement}"
    gpu = change.gpu
    instance, profile = find_instance(gpu, step.instance, step.profile, step.placement)
    doomed = [_find(change, instance, step.instance, uuid) for uuid in step.devices]
    if not (change.looked or all(map(gpu.recent.is_proved_idle, step.devices))):
        _look_for_users(change, step.devices)
    _require_no_other_instance(change, instance, profile, doomed)
    _require_no_other_user(change, step, [(compute.id, compute.uuid) for compute in doomed])
    for compute in doomed:
        change.require_time(f"destroying {name}")
        nvml.destroy_compute_instance(compute.handle)
        gpu.recent.gone(compute.uuid)
    change.require_time(f"destroying {name}")
    destroy_emptied(change, instance)
    gpu.recent.instance_gone(step.instance)


def destroy_compute_instance(change: Change, step: DestroyComputeInstance) -> None:
    """Destroy one compute instance; its GPU instance stays.

    Raises GpuInUse when it has users or may have.
    """
    name = f"{step.profile} in {step.placement}"
    gpu = change.gpu
    instance, _ = find_instance(gpu, step.instance, step.profile, step.placement)
    doomed = _find(change, instance, step.instance, step.device)
    if doomed.id != step.compute:
        raise other_than_planned(
            "renumbered", device=step.device, wanted=step.compute, found=doomed.id
        )
    if not (change.looked or gpu.recent.is_proved_idle(step.device)):
        _look_for_users(change, [step.device])
    _require_no_other_user(change, step, [(doomed.id, doomed.uuid)])
    change.require_time(f"destroying {name}")
    nvml.destroy_compute_instance(doomed.handle)
    gpu.recent.gone(doomed.uuid)


def destroy_emptied(change: Change, instance: GpuInstanceHandle) -> None:
    """Destroy a GPU instance whose compute instances have just gone."""
    for pause in _PAUSES:
        try:
            return nvml.destroy_gpu_instance(instance)
        except GpuInUse:
            if not change.sleep(pause):
                raise
    return nvml.destroy_gpu_instance(instance)


def _devices(step: Destruction) -> tuple[str, ...]:
    return step.devices if isinstance(step, DestroyGpuInstance) else (step.device,)


# --- looking before ---------------------------------------------------------------------------


def _find(change: Change, instance: GpuInstanceHandle, instance_id: int, uuid: str) -> _Doomed:
    if not uuid:
        raise other_than_planned("noMigDevice")
    known = _known(change, uuid)
    if known.gpu_instance != instance_id:
        raise other_than_planned("elsewhere", device=uuid, instance=instance_id)
    handle = nvml.compute_instance_by_id(instance, known.compute_instance)
    return _Doomed(known.compute_instance, uuid, handle)


def _known(change: Change, uuid: str) -> KnownDevice:
    """Which compute instance the device is: as observed or found a moment ago, else asked."""
    recent = change.gpu.recent
    known = recent.device(uuid)
    if known is None:
        device = mig_device(uuid)
        known = recent.known.get(uuid)
        if known is None or not known.is_alone:
            instance, compute = nvml.gpu_instance_id(device), nvml.compute_instance_id(device)
            known = KnownDevice(instance, compute, slices=0)
        recent.found(uuid, known)
    return known


def _look_for_users(change: Change, uuids: Sequence[str]) -> None:
    """Raise GpuInUse unless the devices are idle now, and those that were proven idle with these
    before and are still to be destroyed.
    """
    gpu = change.gpu
    names = tuple(dict.fromkeys((*uuids, *gpu.recent.idle)))
    meant = {uuid: _known(change, uuid) for uuid in names}
    lists = ProcessLists(gpu.handle)
    if _elsewhere(gpu, lists, meant.values()).processes:
        _find_devices(gpu)
        meant = {uuid: _known(change, uuid) for uuid in names}
    for uuid, known in meant.items():
        usage = lists.on_instance(known.gpu_instance, known.compute_instance)
        require_idle(usage, uuid)
    # A process on the GPU and on none of its devices may be on any of them.
    require_idle(_elsewhere(gpu, lists, meant.values()), ", ".join(names))
    gpu.recent.proved_idle(names)


def _elsewhere(gpu: GpuDevice, lists: ProcessLists, meant: Iterable[KnownDevice]) -> Usage:
    known = (*meant, *gpu.recent.devices.values())
    return lists.on_no_instance_of((d.gpu_instance, d.compute_instance) for d in known)


def _find_devices(gpu: GpuDevice) -> None:
    """Find unknown devices: made since the last observation, or all but those asked for after
    the reset of another GPU, which begins a new session with the driver.
    """
    with suppress(DriverError):  # what is not found out counts as in use
        for device in gpu.mig_devices():
            instance, compute = nvml.gpu_instance_id(device), nvml.compute_instance_id(device)
            gpu.recent.found(nvml.uuid(device), KnownDevice(instance, compute, slices=0))


def _require_no_other_instance(
    change: Change,
    instance: GpuInstanceHandle,
    profile: GpuInstanceProfile,
    doomed: Sequence[_Doomed],
) -> None:
    """A compute instance may have been added since; then none is to go in vain.

    An instance that is full can have no others.
    """
    gpu = change.gpu
    if profile.slices == 1:  # which may hold several, where the driver shares it
        whole = gpu.profiles.learn_whole(profile, instance)
        if len(doomed) >= max((compute.max_count for compute in whole), default=2):
            return
    else:
        seen = [gpu.recent.device(compute.uuid) for compute in doomed]
        if sum(device.slices for device in seen if device) >= profile.slices:
            return
    offered = gpu.profiles.learn_compute(profile, instance)
    if profile.slices > 1:
        slices = {compute.id: compute.slices for compute in offered}
        taken = [slices.get(nvml.compute_instance_info(d.handle).profile_id, 0) for d in doomed]
        if sum(taken) >= profile.slices:
            return
    known = {compute.id for compute in doomed}
    for compute in offered:
        for handle in nvml.compute_instances(instance, compute.id, room_for(profile)):
            found = nvml.compute_instance_info(handle).id
            if found not in known:
                raise other_than_planned("another", profile=profile.name, found=found)


def _require_no_other_user(
    change: Change, step: Destruction, doomed: Iterable[tuple[int | None, str]]
) -> None:
    """Raise GpuInUse for users that NVML does not see, and for devices allocated to a pod.

    `doomed` are ids and UUIDs of compute instances.
    """
    change.require_fresh()
    if isinstance(step, DestroyGpuInstance):
        doomed = (*doomed, (None, ""))  # anything in it
    known = change.gpu.identity()
    gpu, minor, place = known.uuid, known.minor, step.placement
    devices = [MigDeviceRef(gpu, minor, step.instance, ci, uuid, place) for ci, uuid in doomed]
    usage = Usage()
    for reading in change.readings:
        usage = usage.together(reading.users_of_gpu(GpuRef(gpu, minor)))
        for device in devices:
            usage = usage.together(reading.users(device))
    require_idle(usage, f"{step.profile} at {step.placement}")


def require_idle(usage: Usage, name: str) -> None:
    """Raise GpuInUse unless the device is certainly idle."""
    if usage.in_use:
        raise in_use(f"{name} is not destroyed: it is in use by {usage}", usage)
