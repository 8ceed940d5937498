"""What a claim makes of a GPU: its own devices beside all that is not its own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from nodeagent.claims.model import ClaimedDevice, ClaimRecord
from nodeagent.mps.lifecycle.model import Phase as DaemonPhase
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, Reserved, WantedInstance
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import TimeSlice, WantedMps
from nodeagent.structs import replace


def to_prepare(record: ClaimRecord, gpu: Gpu, others: Collection[ClaimRecord]) -> DesiredGpu:
    """The claim's devices are there, shared as it says; what it only uses is left as it is."""
    path, own = record.title, tuple(_own(record, gpu))
    if not own:
        return unchanged(gpu, path)
    reserved = tuple(_beside(record, gpu, others))
    whole = next((device for device in own if device.placement is None), None)
    if whole is not None:
        sharing = whole.result.configuration
        off = MigDisabled(path) if gpu.mig is not None else None
        time_slice = sharing if isinstance(sharing, TimeSlice) else None
        mps = daemon_of_shares(gpu.uuid, (record, *others)) if whole.share else whole.mps
        return DesiredGpu(off, path, mps=mps, time_slice=time_slice, reserved=reserved)
    wanted = tuple(
        WantedInstance(device.profile, profile.slices, device.placement.start, path, device.mps)
        for device in own
        if device.placement is not None and (profile := gpu.profile(device.profile))
    )
    mig = Layout(wanted, path) if wanted or gpu.in_mig_mode else None
    return DesiredGpu(mig, path, reserved=reserved)


def to_release(record: ClaimRecord, gpu: Gpu, others: Collection[ClaimRecord]) -> DesiredGpu:
    """Those of the claim's devices gone that are proven to have been made for it, and whatever
    shared them. The daemon of a share stays for the others; one that is not Ready is changed later,
    so that no release waits for it.
    """
    path = f"the release of {record.title}"
    if not any((device.placement is None) != gpu.in_mig_mode for device in _own(record, gpu)):
        return unchanged(gpu, path)
    mig = Layout((), path) if gpu.in_mig_mode else None
    mps = daemon_of_shares(gpu.uuid, others)
    if mps and not (gpu.mps and gpu.mps.state == DaemonPhase.READY):
        return unchanged(gpu, path)
    reserved = tuple(_beside(record, gpu, others))
    return DesiredGpu(mig, path, mps=mps, reserved=reserved, ends=True)


def unchanged(gpu: Gpu, path: str) -> DesiredGpu:
    """All that is there, and how it is shared, stays as it is."""
    here = (Reserved(i.profile, i.placement, path) for i in gpu.instances)
    return DesiredGpu(None, path, reserved=(*here, Reserved("", None, path, shared=True)))


def reserved_on(gpu: str, records: Iterable[ClaimRecord]) -> Iterator[Reserved]:
    """What these claims hold on the GPU with that UUID."""
    for record in records:
        for device in record.devices:
            if device.gpu == gpu and device.is_held:
                whole = device.placement is None
                yield Reserved(device.profile, device.placement, record.title, shared=whole)


def daemon_of_shares(gpu: str, records: Iterable[ClaimRecord]) -> WantedMps | None:
    """The one MPS daemon for all shares that these claims have of the GPU with that UUID; None
    where they have none. Their users and `enforce` are the same (`admission`).
    """
    devices = (device for record in records for device in record.devices if device.gpu == gpu)
    found = {device.result.device: device.mps for device in devices if device.share and device.mps}
    if not found:
        return None
    daemons = [found[name] for name in sorted(found)]
    shares = tuple(share for daemon in daemons for share in daemon.sharing.shares)
    return replace(daemons[0], sharing=replace(daemons[0].sharing, shares=shares))


def _own(record: ClaimRecord, gpu: Gpu) -> Iterator[ClaimedDevice]:
    return (d for d in record.devices if d.gpu == gpu.uuid and d.is_held)


def _beside(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> Iterator[Reserved]:
    """Claims that hold the GPU as a whole, and every instance that is not the claim's own.

    What others are still to get is left out: two that cannot be there together would keep
    everything else from changing. Other shares of the GPU are a part of the goal for one of them.
    """
    if any(device.share for device in _own(record, gpu)):
        others = [one for one in others if not any(device.share for device in _own(one, gpu))]
    held = tuple(reserved_on(gpu.uuid, others))
    yield from (one for one in held if one.placement is None)
    owners = {(one.profile, one.placement): one for one in held}
    for instance in gpu.instances:
        place = instance.profile, instance.placement
        if place in owners:
            yield owners[place]
        elif not any(device.was_made_as(instance) for device in _own(record, gpu)):
            yield Reserved(*place, "")
