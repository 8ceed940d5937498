"""Reads a whole GPU in as few driver calls as are safe, since each may take long.

The route, for a GPU with MIG on (what does not change is in `device` and read once):

1. The mode.
2. GPU instances, profile by profile, those that were there last time first, and the placement of
   each. Instances cannot overlap, so a profile none of whose placements is free any more has no
   further instance and is not asked for; a full GPU takes one list for each profile present.
3. MIG devices by index, one for each compute instance: the UUID, and the ids as far as they do not
   follow from a known UUID. The size is asked only where the GPU instance has several slices. When
   the whole node is observed, indices are tried until no room is left, so that a device in a GPU
   instance of an unlisted profile is found. A GPU that is read alone, around a change of it, has
   been observed that way: the search ends when the instances found are full.
4. The process lists of the GPU, which carry instance ids; if refused, those of each device.
5. Details, where they are wanted: of devices that are new, or that were asked long ago, the memory
   of the GPU instance and the compute mode (with MIG off, that of the GPU); and how an instance of
   that profile could be divided. A compute mode matters only to MPS, so a failure of this call
   leaves only the mode unknown.

A GPU instance whose MIG devices leave compute slices over is asked for its compute instances, so
that none is overlooked and none is called half-made that is not. When something changes
between two of these calls, they contradict each other or fail; then all is read again.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Device, GpuInstanceHandle, InstanceInfo
from nodeagent.gpu.nvml_errors import NOT_KNOWN
from nodeagent.gpu.profiles import if_supported, room_for
from nodeagent.gpu.recent import KnownDevice
from nodeagent.gpu.users import ProcessLists
from nodeagent.plan import observed
from nodeagent.plan.names import device_name
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.users import Usage
from nodeagent.structs import Struct, field, replace

_ATTEMPTS = 3


class _ChangedMeanwhile(Exception):
    """Two answers contradict each other, so the instances are read again."""


class _MigDevice(Struct):
    """A compute instance as it is found; `handle` is None where it has no MIG device."""

    compute_id: int
    slices: int
    uuid: str
    handle: Device | None
    placement: observed.Placement | None


class _Instance(Struct):
    """A GPU instance as it is found."""

    handle: GpuInstanceHandle
    info: InstanceInfo
    profile: observed.GpuInstanceProfile
    devices: list[_MigDevice] = field(default_factory=list)

    @property
    def slices_left(self) -> int:
        return self.profile.slices - sum(device.slices for device in self.devices)


def read_gpu(
    gpu: GpuDevice, details: frozenset[str] | None = None, *, confirm: bool = False
) -> observed.Gpu:
    """The GPU as it is now; raises DriverError when a query that matters fails.

    `details`: MIG devices, by UUID, whose details must be as of now; None: those known are used.
    `confirm`: ask again for profiles that were denied once, and look for devices of instances that
    are not listed. The users are those of NVML; the caller adds others.
    """
    try:
        return _read(gpu, details, confirm=confirm)
    except DriverError as error:
        if error.code not in NOT_KNOWN:
            raise
    gpu.give_up_handle()  # stale, it seems: the driver was reloaded or the GPU reset
    return _read(gpu, details, confirm=confirm)


def _read(gpu: GpuDevice, details: frozenset[str] | None, *, confirm: bool) -> observed.Gpu:
    gpu.identity()  # kept for `unchanging`, as are profiles and whether a reset is needed
    mode = gpu.mode()
    if mode is None:
        return _undivided(gpu, None)
    gpu.mode_change_needs_reset()
    gpu.profiles.learn(mode, confirm=confirm)
    if not mode.current:
        return _undivided(gpu, mode)
    instances, usage = _read_instances(gpu, details, confirm=confirm)
    return replace(gpu.unchanging, mig=mode, instances=instances, usage=usage)


def _undivided(gpu: GpuDevice, mode: observed.MigMode | None) -> observed.Gpu:
    return replace(
        gpu.unchanging,
        mig=mode,
        usage=ProcessLists(gpu.handle).on_all(),
        compute_mode=read_compute_mode(gpu.handle),
    )


def _read_instances(
    gpu: GpuDevice, details: frozenset[str] | None, *, confirm: bool
) -> tuple[tuple[observed.GpuInstance, ...], Usage]:
    for attempt in range(_ATTEMPTS):
        try:
            found = find_instances(gpu)
            for instance in found if details is not None else ():
                gpu.profiles.learn_compute(instance.profile, instance.handle)
            _find_devices(gpu, found, hidden=confirm)
            _remember(gpu, found)
            return _describe(gpu, found, details)
        except _ChangedMeanwhile:
            gpu.recent.forget()
        except DriverError as error:
            if error.code not in NOT_KNOWN or attempt == _ATTEMPTS - 1:
                raise
    raise DriverError.of("contradiction", gpu=gpu)


# --- GPU instances --------------------------------------------------------------------------------


def find_instances(gpu: GpuDevice, among: Collection[int] | None = None) -> list[_Instance]:
    """The GPU instances of all profiles, or of those with ids `among` these, in the order of their
    places and without their MIG devices.
    """
    found: list[_Instance] = []
    occupied = 0
    asked = [p for p in gpu.profiles.known if among is None or p.id in among]
    likely_first = sorted(asked, key=lambda p: p.id not in gpu.present_profiles)
    for profile in likely_first:
        if profile.placements and all(place.mask & occupied for place in profile.placements):
            continue
        for handle in nvml.gpu_instances(gpu.handle, profile.id, room_for(profile)):
            info = nvml.gpu_instance_info(handle)
            found.append(_Instance(handle, info, profile))
            occupied |= info.placement.mask
    gpu.present_profiles = frozenset(instance.profile.id for instance in found)
    gpu.recent.found_instances((instance.handle, instance.info) for instance in found)
    return sorted(found, key=lambda i: (i.info.placement, i.info.id))


# --- compute instances ----------------------------------------------------------------------------


def _find_devices(gpu: GpuDevice, found: list[_Instance], *, hidden: bool) -> None:
    """Fill in the MIG devices. `hidden`: look for devices of unlisted instances, too."""
    by_id = {instance.info.id: instance for instance in found}
    devices = gpu.mig_devices()
    while not _is_full(gpu, found, hidden=hidden) and (device := next(devices, None)) is not None:
        _add_device(gpu, by_id, device)
    for instance in found:
        if instance.slices_left > 0:
            instance.devices += _without_mig_device(gpu, instance)


def _is_full(gpu: GpuDevice, found: list[_Instance], *, hidden: bool) -> bool:
    """Whether no further device fits into any of the instances nor, with `hidden`, onto the GPU
    beside them. An instance of one slice that can hold several devices is never full.
    """
    if any(i.slices_left > 0 or not gpu.profiles.holds_one(i.profile) for i in found):
        return False
    if not hidden:
        return True
    occupied = observed.mask_of(instance.info.placement for instance in found)
    return all(
        profile.placements and all(place.mask & occupied for place in profile.placements)
        for profile in gpu.profiles.known
    )


def _add_device(gpu: GpuDevice, by_id: Mapping[int, _Instance], handle: Device) -> None:
    uuid = nvml.uuid(handle)
    known = gpu.recent.known.get(uuid)
    instance = by_id.get(known.gpu_instance if known else nvml.gpu_instance_id(handle))
    if instance is None:
        raise _ChangedMeanwhile
    if known and gpu.profiles.holds_one(instance.profile) and instance.profile.slices == 1:
        compute_id = known.compute_instance  # the same each time, as the device is alone
    else:
        compute_id = nvml.compute_instance_id(handle)
    if any(device.compute_id == compute_id for device in instance.devices):
        raise _ChangedMeanwhile
    slices, placement = _size_of(gpu, instance, handle, compute_id)
    instance.devices.append(_MigDevice(compute_id, slices, uuid, handle, placement))


def _remember(gpu: GpuDevice, found: list[_Instance]) -> None:
    gpu.recent.observed(
        {
            device.uuid: KnownDevice(
                instance.info.id,
                device.compute_id,
                device.slices,
                is_alone=instance.profile.slices == 1 and gpu.profiles.holds_one(instance.profile),
            )
            for instance in found
            for device in instance.devices
            if device.uuid
        },
    )


def _size_of(
    gpu: GpuDevice, instance: _Instance, handle: Device, compute_id: int
) -> tuple[int, observed.Placement | None]:
    profile = instance.profile
    if profile.slices == 1:
        return 1, only_placement(gpu, profile)
    slices = nvml.compute_slices(handle)
    if slices == profile.slices:
        return slices, only_placement(gpu, profile)
    info = nvml.compute_instance_info(nvml.compute_instance_by_id(instance.handle, compute_id))
    return slices, info.placement


def only_placement(
    gpu: GpuDevice, profile: observed.GpuInstanceProfile
) -> observed.Placement | None:
    """The placement of a compute instance with its whole GPU instance, if there is only one."""
    places = {
        place
        for compute in gpu.profiles.compute_of(profile.id)
        if compute.slices == profile.slices
        for place in compute.placements
    }
    return places.pop() if len(places) == 1 else None


def _without_mig_device(gpu: GpuDevice, instance: _Instance) -> list[_MigDevice]:
    """Compute instances that the driver shows no MIG device of; as a rule there are none."""
    shown = {device.compute_id for device in instance.devices}
    hidden = []
    for compute in gpu.profiles.learn_compute(instance.profile, instance.handle):
        for handle in nvml.compute_instances(
            instance.handle, compute.id, room_for(instance.profile)
        ):
            info = nvml.compute_instance_info(handle)
            if info.id not in shown:
                hidden.append(_MigDevice(info.id, compute.slices, "", None, info.placement))
    return hidden


# --- the result -----------------------------------------------------------------------------------


def _describe(
    gpu: GpuDevice, found: list[_Instance], details: frozenset[str] | None
) -> tuple[tuple[observed.GpuInstance, ...], Usage]:
    lists = ProcessLists(gpu.handle)
    described = tuple(
        observed.GpuInstance(
            id=instance.info.id,
            profile_id=instance.profile.id,
            profile=instance.profile.name,
            placement=instance.info.placement,
            compute=tuple(_describe_devices(gpu, instance, lists, details)),
        )
        for instance in found
    )
    known = [(instance.id, device.id) for instance in described for device in instance.compute]
    return described, lists.on_no_instance_of(known)


def _describe_devices(
    gpu: GpuDevice, instance: _Instance, lists: ProcessLists, details: frozenset[str] | None
) -> Iterator[observed.ComputeInstance]:
    _read_details(gpu, instance, details)
    for device in sorted(instance.devices, key=lambda device: device.compute_id):
        detail = gpu.recent.details.get(device.uuid)
        yield observed.ComputeInstance(
            id=device.compute_id,
            profile=device_name(instance.profile.name, instance.profile.slices, device.slices),
            slices=device.slices,
            uuid=device.uuid,
            placement=device.placement,
            # Where the GPU's own lists are refused, those of the device itself.
            usage=ProcessLists(device.handle).on_all()
            if lists.problem and device.handle is not None
            else lists.on_instance(instance.info.id, device.compute_id),
            memory=detail.memory if detail else None,
            compute_mode=detail.compute_mode if detail else None,
        )


def _read_details(gpu: GpuDevice, instance: _Instance, details: frozenset[str] | None) -> None:
    """Read what is due; one device is asked for the memory, which they share."""
    memory: observed.Memory | None = None
    for device in instance.devices:
        if details is None or device.handle is None:
            continue
        if not gpu.recent.details_due(device.uuid, details):
            continue
        memory = memory or if_supported(partial(nvml.memory, device.handle), None)
        gpu.recent.keep(device.uuid, memory, read_compute_mode(device.handle))


def read_compute_mode(device: Device) -> ComputeMode | None:
    """Read the compute mode; None where the device has none or the driver does not report it.

    Raises only when the GPU as a whole, or the driver, is gone.
    """
    try:
        return nvml.compute_mode(device)
    except (GpuLost, DriverUnavailable):
        raise
    except DriverError:
        return None
