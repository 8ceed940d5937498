"""Who holds which part of which device, and what was granted with it. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.plan.layouts import Card
from nodeagent.plan.observed import Gpu, GpuInstance, ObservedNode
from nodeagent.plan.shares import ALL_THREADS, MIB
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.ownership import Device, DeviceUse
from nodeagent.use.records import Grant, Holder, PodKey
from nodeagent.views.claims import Claim, ClaimShare
from nodeagent.views.shapes import MpsDaemon

_LONGEST: Final = 255  # characters of the containers' names: a pod may have any number of these


class DeviceHold(Struct, frozen=True):
    """How much of a GPU a device is (1 for a whole one) and how many memory slices it has (0 for a
    whole GPU), each divided among those `sharing` it, so many. `owners` are those of the holder's,
    `labels` the device's; `grant` is None while the share is not known.
    """

    labels: tuple[str, ...]
    gpus: float
    slices: float
    sharing: int
    owners: tuple[Owner, ...]
    grant: Grant | None

    def holder(self, workloads: Mapping[PodKey, str]) -> Holder:
        """A workload, if the pod is among those of known `workloads` ("": that by its name)."""
        one = self.owners[0]
        if one.pod:
            containers = ",".join(dict.fromkeys(o.container for o in self.owners if o.container))
            pod = Holder("pod", one.pod, one.namespace, containers[:_LONGEST])
            return pod.named(workloads[pod.pod]) if pod.pod in workloads else pod
        kind = "unit" if one.unit else "user" if one.user else "container"
        return Holder(kind, getattr(one, kind))


def holds_of(
    observed: ObservedNode,
    uses: Mapping[Device, DeviceUse],
    claims: Iterable[Claim] = (),
    daemons: Iterable[MpsDaemon] = (),
) -> dict[tuple[Device, Owner], DeviceHold]:
    """Who holds what; `claims`, and the clients of `daemons`, have shares of devices."""
    shares = {
        ((device.gpu, device.gi), pod.namespace, pod.name): device.share
        for claim in claims
        for device in claim.devices
        if device.share and not device.admin_access
        for pod in claim.pods
    }
    named: dict[PodKey, dict[str, str]] = defaultdict(dict)
    for daemon in daemons:
        for client in daemon.clients:
            if pod := client.pod:
                on = dict.fromkeys((daemon.device, *daemon.devices), client.share)
                named[pod.namespace, pod.name] |= on
    found: dict[tuple[Device, Owner], DeviceHold] = {}
    for gpu in observed.gpus:
        slots = Card.of(gpu).slots
        parts = [(i.id, i.profile, i.placement.size, i) for i in gpu.instances]
        for number, profile, size, instance in [(None, "", 0, None), *parts]:
            device = (gpu.uuid, number)
            holders: dict[Owner, list[Owner]] = {}
            for owner in uses[device].owners if device in uses else ():
                # A pod's time is not divided among its containers.
                holder = replace(owner, container="") if owner.pod else owner
                holders.setdefault(holder, []).append(owner)
            gpus = 1.0 if number is None else size / slots if slots else 0.0
            labels = (str(gpu.index), gpu.uuid, profile, "" if number is None else str(number))
            sharing = len(holders)
            for holder, owners in holders.items():
                share = shares.get((device, holder.namespace, holder.pod))
                grant = _grant(gpu, instance, share, named[holder.namespace, holder.pod])
                parts_of = gpus / sharing, size / sharing, sharing
                found[device, holder] = DeviceHold(labels, *parts_of, tuple(owners), grant)
    return found


def _grant(
    gpu: Gpu, instance: GpuInstance | None, share: ClaimShare | None, names: Mapping[str, str]
) -> Grant | None:
    """What a holder has: a share of a claim or, by its name, of the device's MPS daemon, else the
    whole device. None: the card does not list the profile now, or the daemon has several kinds of
    share, and which it is, is not known.
    """
    device, memory, uuid, daemon = "gpu", gpu.memory, gpu.uuid, gpu.mps
    if instance is not None:
        if (profile := gpu.profile(instance.profile)) is None:
            return None
        device, memory = profile.name, profile.memory
        served = (compute for compute in instance.compute if compute.mps)
        uuid, daemon = next(((c.uuid, c.mps) for c in served), ("", None))
    if share is not None:
        memory, threads = share.memory, share.threads
    elif daemon is not None:
        kinds = daemon.runs.sharing.shares
        name = names.get(uuid) if len(kinds) > 1 else kinds[0].name
        kind = next((kind for kind in kinds if kind.name == name), None)
        if kind is None:
            return None
        memory = (kind.memory_on(uuid) or 0) * MIB or memory
        threads = kind.threads or ALL_THREADS
    else:
        return Grant(device, gpu.name, memory)
    return Grant(f"share of {device}" if instance else "share", gpu.name, memory, threads)
