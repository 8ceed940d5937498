"""What a claim makes of a GPU: its own devices beside all that is not its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.claims.model import ClaimedDevice, ClaimRecord
from nodeagent.plan.desired import (
    DesiredGpu,
    DesiredMig,
    Layout,
    MigDisabled,
    Reserved,
    WantedInstance,
)
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import TimeSlice

_NOBODY = "of no claim"


def to_prepare(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> DesiredGpu:
    """The claim's devices are there; what it only uses is left as it is."""
    path = record.title
    reserved = tuple(_beside(record, gpu, others))
    own = tuple(_own(record, gpu))
    whole = next((device for device in own if device.placement is None), None)
    if whole is not None:
        sharing = whole.result.configuration
        off = MigDisabled(path) if gpu.mig is not None else None
        time_slice = sharing if isinstance(sharing, TimeSlice) else None
        return DesiredGpu(off, path, time_slice=time_slice, reserved=reserved)
    wanted = tuple(
        WantedInstance(device.profile, profile.slices, device.placement.start, path)
        for device in own
        if device.placement is not None and (profile := gpu.profile(device.profile))
    )
    return DesiredGpu(_mig(gpu, wanted, path), path, reserved=reserved)


def to_release(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> DesiredGpu:
    """Those of the claim's devices gone that are proven to have been made for it."""
    path = f"the release of {record.title}"
    return DesiredGpu(_mig(gpu, (), path), path, reserved=tuple(_beside(record, gpu, others)))


def reserved_on(gpu: str, records: Iterable[ClaimRecord]) -> Iterator[Reserved]:
    """What these claims hold on the GPU with that UUID."""
    for record in records:
        for device in record.devices:
            if device.gpu == gpu and device.is_held:
                yield Reserved(device.profile, device.placement, record.title)


def _mig(gpu: Gpu, wanted: tuple[WantedInstance, ...], path: str) -> DesiredMig | None:
    """MIG mode is not switched on for nothing."""
    return Layout(wanted, path) if wanted or gpu.in_mig_mode else None


def _own(record: ClaimRecord, gpu: Gpu) -> Iterator[ClaimedDevice]:
    return (d for d in record.devices if d.gpu == gpu.uuid and d.is_held)


def _beside(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> Iterator[Reserved]:
    """What other claims hold, and every other instance that is there."""
    held = tuple(reserved_on(gpu.uuid, others))
    yield from held
    known = {(one.profile, one.placement) for one in held}
    for instance in gpu.instances:
        mine = any(device.was_made_as(instance) for device in _own(record, gpu))
        if (instance.profile, instance.placement) not in known and not mine:
            yield Reserved(instance.profile, instance.placement, _NOBODY)
