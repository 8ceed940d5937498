"""A claim's record beside the hardware, while its devices are made and released. Pure."""

from __future__ import annotations

from collections.abc import Collection

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, Phase
from nodeagent.errors import StillInUse, Transient
from nodeagent.plan.mps_users import as_used
from nodeagent.plan.observed import Access, Gpu, GpuInstance, ObservedNode
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.users import Usage
from nodeagent.structs import replace

_MOST = 8  # processes in one command; the rest are named when these are gone


def without_ids(record: ClaimRecord, gpu: str | None = None) -> ClaimRecord:
    """Without ids, which count in one run of the machine alone; of one GPU, by its UUID, or all."""
    devices = (
        replace(device, before=None, instance=None, compute=None, uuid="")
        if gpu in (None, device.gpu)
        else device
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
        gone = device.placement is not None and device.placement not in places
        if device.gpu == gpu.uuid and (device.before is None or gone):
            return replace(device, before=here, instance=None, compute=None, uuid="")
        return device

    devices = tuple(map(begun_device, record.devices))
    if devices == record.devices:
        return record
    return replace(record, devices=devices, phase=Phase.INTENT)


def with_instances(record: ClaimRecord, gpu: Gpu) -> ClaimRecord:
    """With the ids of what was made on the GPU, or is used there, as it was read back."""

    def found(device: ClaimedDevice) -> ClaimedDevice:
        for instance in gpu.instances if device.gpu == gpu.uuid else ():
            if instance.compute and _is_its(instance, device):
                one = instance.compute[0]
                return replace(device, instance=instance.id, compute=one.id, uuid=one.uuid)
        return device

    return replace(record, devices=tuple(map(found, record.devices)))


def _is_its(instance: GpuInstance, device: ClaimedDevice) -> bool:
    """What a claim only uses may be another one by now, at the same place."""
    if device.is_made:
        return device.was_made_as(instance)
    return (instance.profile, instance.placement) == (device.profile, device.placement)


def is_there(device: ClaimedDevice, gpu: Gpu) -> bool:
    """Whether what stands for it is on its GPU, as that was read."""
    if device.placement is None:
        return device.result.admin_access or not gpu.in_mig_mode
    return any(i.compute and _is_its(i, device) for i in gpu.instances)


def require_there(record: ClaimRecord, gpu: Gpu) -> None:
    """Raise NodeagentError where a device of the claim's on the GPU is not there, as read back."""
    for device in record.devices:
        if device.gpu == gpu.uuid and not is_there(device, gpu):
            anew = f"if none has it any more, run {record.reference.schedule_anew}; "
            by_plan = "" if device.is_held else f"the plan makes it; {anew}"
            raise Transient(
                f"{record.title} has to wait: {device.result.device} of {gpu.title} is not there",
                remedy=f"{by_plan}`nodeagent status --gpu {gpu.index}` shows what keeps it from "
                "that",
            )


def is_taken_out(gpu: str, node: ObservedNode) -> bool:
    """Whether the card with this UUID is not in the machine any more: all that are there answer."""
    complete = bool(node.gpus) and all(o.uuid and o.access is Access.OK for o in node.gpus)
    return complete and node.gpu(gpu) is None


def _may_be_anothers(usage: Usage) -> str:
    """The remedy for users of a share: which claim's they are may not be known yet."""
    files = " ".join(f"/proc/{user.pid}/cgroup" for user in usage.processes[:_MOST] if user.pid)
    shows = f" (`cat {files}` shows its pod)" if files else ""
    return (
        f"end it if it is this claim's{shows}, or wait for its end: before the agent has the "
        "kubelet's list of pods, a minute after its start, it may be another claim's"
    )


def require_lasting_unused(
    record: ClaimRecord, gpu: Gpu, other_pods: Collection[tuple[str, str]]
) -> None:
    """Raise StillInUse for the users of a claim's device that is there after its release, too: one
    of a plan, or the GPU as a whole.

    On a GPU of which it has a share, a process in one of the `other_pods` (namespace and name) is
    not the claim's; any other may be.
    """
    used = as_used(gpu)
    for device in record.devices:
        if device.gpu != gpu.uuid or device.is_made or device.result.admin_access:
            continue
        usage = used.usage
        for instance in used.instances:
            if device.placement in (None, instance.placement):
                for one in instance.compute:
                    usage = usage.together(one.usage)
        if device.share:
            own = (u for u in usage.processes if (u.namespace, u.pod) not in other_pods)
            usage = replace(usage, processes=tuple(own))
        if usage.in_use:
            name = f"{device.result.device} of " if device.placement or device.share else ""
            raise StillInUse(
                f"{record.title} is not released: {name}{gpu.title} is in use by {usage}",
                remedy=_may_be_anothers(usage) if device.share else in_use_remedy(usage),
            )
