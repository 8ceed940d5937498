"""A claim's part of a GPU: what it is to be, beside all that is not the claim's, and the record
beside the hardware. Pure.
"""

from collections.abc import Collection, Iterable, Iterator

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.mps.lifecycle.model import DaemonPhase
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, Reserved, WantedInstance
from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.shares import TimeSlice, WantedMps
from nodeagent.structs import replace

# --- the goal -------------------------------------------------------------------------------------


def to_prepare(record: ClaimRecord, gpu: Gpu, others: Collection[ClaimRecord]) -> DesiredGpu:
    """The goal with the claim's devices, shared as it says; what it only uses is left as it is."""
    path, own = record.title, _own(record, gpu)
    served = record.daemon_on(gpu.uuid) is not None
    if not own and not served:
        return unchanged(gpu, path)
    reserved = tuple(_beside(record, own, gpu, others))
    whole = next((device for device in own if device.placement is None), None)
    if whole is not None or served:
        # All shares of a GPU have turns of one length, which is not theirs to say.
        sharing = whole.result.configuration if whole and not whole.shared else None
        off = MigDisabled(path) if gpu.mig is not None else None
        time_slice = sharing if isinstance(sharing, TimeSlice) else None
        mps = daemon_of(gpu.uuid, (record, *others))
        return DesiredGpu(off, path, mps=mps, time_slice=time_slice, reserved=reserved)
    devices = [device for one in (record, *others) for device in one.devices]
    wanted = _instances(own, gpu, devices, path)
    mig = Layout(wanted, path) if wanted or gpu.in_mig_mode else None
    return DesiredGpu(mig, path, reserved=reserved)


def to_release(record: ClaimRecord, gpu: Gpu, others: Collection[ClaimRecord]) -> DesiredGpu:
    """The goal without those of the claim's devices that are proven to have been made for it, and
    whatever shared them. What others have shares of stays, and its daemon for them; one that is
    not Ready is changed later, so that no release waits for it.
    """
    path, own, mig = f"the release of {record.title}", _own(record, gpu), None
    ready = {one.uuid for one in gpu.devices() if one.mps and one.mps.state == DaemonPhase.READY}
    if gpu.in_mig_mode:
        theirs = tuple(_there(gpu, others, record.boot_id))
        parts = (device for device in own if instance_of(device, gpu))
        own = tuple(d for d in parts if d.uuid in ready or not daemon_of_part(d, theirs))
        lasting = [d for d in own if d.fixed or any(one.shares_with(d) for one in theirs)]
        mig, mps = Layout(_instances(lasting, gpu, theirs, path), path), None
    else:
        own = tuple(device for device in own if device.placement is None)
        mps = daemon_of(gpu.uuid, others)
    served = record.daemon_on(gpu.uuid) is not None and not gpu.in_mig_mode
    if not (own or served) or (mps and gpu.uuid not in ready):
        return unchanged(gpu, path)
    reserved = tuple(_beside(record, own, gpu, others))
    return DesiredGpu(mig, path, mps=mps, reserved=reserved, ends=True)


def _own(record: ClaimRecord, gpu: Gpu) -> tuple[ClaimedDevice, ...]:
    """What the claim changes on the GPU: what it holds, and the daemons of the plan's devices of
    which it has shares.
    """
    here = (device for device in record.devices if device.gpu == gpu.uuid)
    return tuple(device for device in here if device.is_held or device.mps)


def _there(gpu: Gpu, records: Iterable[ClaimRecord], boot_id: str) -> Iterator[ClaimedDevice]:
    """The claims' devices without those that still have to be made for them, anew maybe."""
    for record in records:
        for device in record.devices:
            if not device.is_made or (record.boot_id == boot_id and instance_of(device, gpu)):
                yield device


def _instances(
    own: Iterable[ClaimedDevice], gpu: Gpu, devices: Collection[ClaimedDevice], path: str
) -> tuple[WantedInstance, ...]:
    """The MIG devices `own`, each once, those of the plan as far as they are there; with the
    daemons of all `devices` that share them.
    """
    found = {}
    for device in own:
        profile = gpu.profile(device.profile)
        if device.placement and profile and (device.is_made or instance_of(device, gpu)):
            mps = daemon_of_part(device, devices) if device.shared else device.mps
            start = device.placement.start
            found[start] = WantedInstance(device.profile, profile.slices, start, path, mps)
    return tuple(found.values())


def unchanged(gpu: Gpu, path: str) -> DesiredGpu:
    """All that is there, and how it is shared, stays as it is."""
    here = (Reserved(i.profile, i.placement, path) for i in gpu.instances)
    return DesiredGpu(None, path, reserved=(*here, Reserved("", None, path, shared=True)))


def reserved_on(gpu: str, records: Iterable[ClaimRecord]) -> Iterator[Reserved]:
    """Return what these claims hold on the GPU with that UUID. One that an MPS daemon of theirs
    serves, too, stays its own until they are gone.
    """
    for record in records:
        held = record.held_on(gpu)
        for device in held:
            whole = device.placement is None
            yield Reserved(device.profile, device.placement, record.title, shared=whole)
        if not held and record.daemon_on(gpu):
            yield Reserved("", None, record.title, shared=True)


def daemon_of(gpu: str, records: Iterable[ClaimRecord]) -> WantedMps | None:
    """The one MPS daemon for all that these claims have of the GPU with that UUID as a whole; None
    where they have none. Users, `enforce` and GPUs are the same for all (`admission`).
    """
    return _for_all(d for record in records for d in record.devices if gpu in d.daemon)


def daemon_of_part(of: ClaimedDevice, devices: Iterable[ClaimedDevice]) -> WantedMps | None:
    """The one MPS daemon for all of the devices that are shares of the same MIG device as `of`."""
    return _for_all(device for device in devices if device.shares_with(of))


def _for_all(devices: Iterable[ClaimedDevice]) -> WantedMps | None:
    devices = sorted(devices, key=lambda device: device.result.share_id)
    daemons = [device.mps for device in devices if device.mps]
    if not daemons:
        return None
    # Devices of one claim in one container have the same kind of client.
    shares = tuple(dict.fromkeys(share for daemon in daemons for share in daemon.sharing.shares))
    return replace(daemons[0], sharing=replace(daemons[0].sharing, shares=shares))


def _beside(
    record: ClaimRecord, own: Collection[ClaimedDevice], gpu: Gpu, others: Iterable[ClaimRecord]
) -> Iterator[Reserved]:
    """Claims that hold the GPU as a whole, and every instance that is not the claim's `own`.

    What others are still to get is left out: two that cannot be there together would keep
    everything else from changing. Other shares of a device, and who has its daemon, too, are a part
    of the goal for one of them.
    """
    together = {device.placement for device in own if device.shared and device.placement}
    if _shares(record, gpu.uuid):
        others = [one for one in others if not _shares(one, gpu.uuid)]
    held = [one for one in reserved_on(gpu.uuid, others) if one.placement not in together]
    yield from (other for other in held if other.placement is None)
    owners = {(other.profile, other.placement): other for other in held}
    for instance in gpu.instances:
        place = instance.profile, instance.placement
        if place in owners:
            yield owners[place]
        elif not any(instance_of(device, gpu) == instance for device in own):
            yield Reserved(*place, "")


def _shares(record: ClaimRecord, gpu: str) -> bool:
    has_daemon = record.daemon_on(gpu) is not None
    wholes = (device for device in record.held_on(gpu) if device.placement is None)
    return has_daemon or any(device.shared for device in wholes)


# --- the record beside the hardware ---------------------------------------------------------------


def clear_ids(record: ClaimRecord, gpu: str | None = None) -> ClaimRecord:
    """Clear the ids, which count in one run of the machine; of one GPU, by its UUID, or all."""
    devices = (
        replace(device, before=None, instance=None, compute=None, uuid="")
        if gpu in (None, device.gpu)
        else device
        for device in record.devices
    )
    return replace(record, devices=tuple(devices))


def left_on(record: ClaimRecord, lost: Collection[str]) -> ClaimRecord | None:
    """The record with what it had on GPUs that are lost, once all else is released; None without
    any. What served several GPUs has ended, or is others'.
    """
    devices = tuple(
        replace(device, mps=None) if len(device.daemon) > 1 else device
        for device in record.devices
        if device.gpu in lost and not device.result.admin_access
    )
    return replace(record, devices=devices) if devices else None


def with_intent(
    record: ClaimRecord, gpu: Gpu, boot_id: str, others: Iterable[ClaimRecord] = ()
) -> ClaimRecord:
    """The record before the claim's devices on the GPU are made, or made again. An instance that
    is there for another claim's share of it is so for the claim's, too.
    """
    others = [other for other in others if other.boot_id == boot_id]
    if record.boot_id != boot_id:
        record = replace(clear_ids(record), boot_id=boot_id, phase=RecordPhase.INTENT)
    here = tuple((instance.id, instance.placement) for instance in gpu.instances)
    places = {placement for _, placement in here}

    def to_be_made(device: ClaimedDevice) -> ClaimedDevice:
        if device.gpu != gpu.uuid:
            return device
        if (maker := _maker(device, gpu, others)) and not instance_of(device, gpu):
            return replace(
                device,
                fixed=maker.fixed,
                before=maker.before,
                instance=maker.instance,
                compute=maker.compute,
                uuid=maker.uuid,
            )
        gone = device.placement is not None and device.placement not in places
        if device.before is None or gone:
            return replace(device, before=here, instance=None, compute=None, uuid="")
        return device

    devices = tuple(map(to_be_made, record.devices))
    if devices == record.devices:
        return record
    return replace(record, devices=devices, phase=RecordPhase.INTENT)


def with_instances(record: ClaimRecord, gpu: Gpu) -> ClaimRecord:
    """Add the ids of what was made on the GPU, or is used there, as it was read back."""

    def with_ids(device: ClaimedDevice) -> ClaimedDevice:
        instance = instance_of(device, gpu) if device.gpu == gpu.uuid else None
        if instance is None or not instance.compute:
            return device
        compute = instance.compute[0]
        return replace(device, instance=instance.id, compute=compute.id, uuid=compute.uuid)

    return replace(record, devices=tuple(map(with_ids, record.devices)))


def instance_of(device: ClaimedDevice, gpu: Gpu) -> GpuInstance | None:
    """The GPU instance that stands for the MIG device. One that a claim only uses may be another
    by now, at the same place.
    """
    for instance in gpu.instances:
        if (instance.profile, instance.placement) == (device.profile, device.placement) and (
            not device.is_made or device.was_made_as(instance)
        ):
            return instance
    return None


def _maker(device: ClaimedDevice, gpu: Gpu, others: Iterable[ClaimRecord]) -> ClaimedDevice | None:
    """Another claim's share of the same MIG device, which is there for it, or by the plan."""
    shares = (one for other in others for one in other.devices if one.shares_with(device))
    return next((one for one in shares if instance_of(one, gpu)), None)


def is_there(device: ClaimedDevice, gpu: Gpu) -> bool:
    """Return whether what stands for it is on its GPU, as that was read."""
    if device.placement is None:
        return device.result.admin_access or not gpu.in_mig_mode
    instance = instance_of(device, gpu)
    return instance is not None and bool(instance.compute)
