"""What was allocated at one moment, joined with what the driver reports. Pure.

A pod holds its devices from before its first process until after its last, so an allocation
blocks like a process does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from nodeagent.cluster.kubelet.allocations import (
    Anywhere,
    ByFile,
    ByInstance,
    ByPlace,
    ByUuid,
    DeviceId,
    Holding,
)
from nodeagent.cluster.kubelet.processes import ProcessPod
from nodeagent.gpu.users import (
    GpuRef,
    MigDeviceRef,
    UsageReading,
    mig_device_of,
    whole_gpu,
)
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace

Owners = Mapping[int, ProcessPod | None]  # by pid; None for a process outside any pod


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """Everything that was allocated at one moment."""

    holdings: tuple[Holding, ...] = ()

    def users(self, device: MigDeviceRef) -> Usage:
        """Who was given the MIG device, or may have been."""
        return self._usage(device.minor, lambda held: _is_device(held, device))

    def users_of_gpu(self, gpu: GpuRef) -> Usage:
        """Who was given the GPU itself, or may have been."""
        return self._usage(gpu.minor, lambda held: _is_gpu(held, gpu))

    def _usage(self, minor: int | None, is_held: Callable[[DeviceId], bool]) -> Usage:
        users = tuple(sorted({_user(one) for one in self.holdings if is_held(one.device)}))
        for one in self.holdings:
            if isinstance(one.device, Anywhere):
                reason = (
                    f"pod {one.pod} was given the device {one.device.name!r}, "
                    "and it is not known which one that is"
                )
                return Usage(users, known=False, reason=reason)
        if minor is None and any(isinstance(one.device, ByFile | ByPlace) for one in self.holdings):
            reason = "the driver does not report which device file the GPU has"
            return Usage(users, known=False, reason=reason)
        return Usage(users)


def _user(one: Holding) -> User:
    pod = one.pod
    return User(0, source="kubelet", namespace=pod.namespace, pod=pod.name, container=one.container)


def _is_device(held: DeviceId, device: MigDeviceRef) -> bool:
    """Whether it is the MIG device, in it, or around it; not so the whole GPU."""
    match held:
        case ByUuid(uuid):
            return bool(device.uuid) and uuid == device.uuid.lower()
        case ByInstance(gpu, instance, compute):
            return (gpu, instance) == (device.gpu.lower(), device.gpu_instance) and (
                device.compute_instance in {compute, None}
            )
        case ByFile(minor, instance):
            return (minor, instance) == (device.minor, device.gpu_instance)
        case ByPlace(minor, start):
            place = device.placement
            return minor == device.minor and (place is None or bool(place.mask >> start & 1))
        case Anywhere():
            return False  # it makes everything unknown
        case _:
            assert_never(held)


def _is_gpu(held: DeviceId, gpu: GpuRef) -> bool:
    """Whether it is the GPU as a whole, or something on it that none of its instances is."""
    match held:
        case ByUuid(uuid):
            return uuid == gpu.gpu.lower()
        case ByInstance():
            return False
        case ByFile(minor, instance):
            return minor == gpu.minor and instance is None
        case ByPlace(minor, start):
            if minor != gpu.minor or gpu.instances is None:
                return False
            return not any(place.mask >> start & 1 for place in gpu.instances)
        case Anywhere():
            return False
        case _:
            assert_never(held)


# --- joined with what the driver sees -------------------------------------------------------------


def with_allocations(gpu: Gpu, reading: UsageReading, owners: Owners) -> Gpu:
    """The GPU with whom it and its devices were given to, and its processes' pods named."""

    def device_with(instance: GpuInstance, device: ComputeInstance) -> ComputeInstance:
        holders = reading.users(mig_device_of(gpu, instance, device))
        return replace(device, usage=_joined(device.usage, holders, owners))

    usage = _joined(gpu.usage, reading.users_of_gpu(whole_gpu(gpu)), owners)
    return replace(gpu, usage=usage).with_mig_devices(device_with)


def _joined(usage: Usage, holders: Usage, owners: Owners) -> Usage:
    processes = tuple(_named(user, holders.processes, owners) for user in usage.processes)
    # Only a process whose cgroup proves its pod stands for the pod's allocation. One that was
    # named because the pod alone holds the device may be another's, an MPS server say, and would
    # take the allocation along when it is left out.
    shown = {(user.namespace, user.pod) for user in processes if _is_proven(user, owners)}
    rest = tuple(user for user in holders.processes if (user.namespace, user.pod) not in shown)
    return replace(usage, processes=processes).together(replace(holders, processes=rest))


def _is_proven(user: User, owners: Owners) -> bool:
    owner = owners.get(user.pid) if user.pid else None
    return owner is not None and owner.name is not None


def _named(user: User, holders: Sequence[User], owners: Owners) -> User:
    """The process with its pod: its cgroup's, else the only one that holds the device."""
    if user.pod or not user.pid:
        return user
    if user.pid in owners:
        owner = owners[user.pid]
        if owner is None:
            return user  # a process of the machine's own
        if owner.name is not None:
            pod = (owner.name.namespace, owner.name.name)
            return _of_pod(user, pod, owner.container or _container(pod, holders))
    pods = {(holder.namespace, holder.pod) for holder in holders}
    if len(pods) != 1:
        return user
    pod = pods.pop()
    return _of_pod(user, pod, _container(pod, holders))


def _of_pod(user: User, pod: tuple[str, str], container: str) -> User:
    return replace(user, namespace=pod[0], pod=pod[1], container=container)


def _container(pod: tuple[str, str], holders: Sequence[User]) -> str:
    """The pod's container that holds the device, if it is one."""
    found = {holder.container for holder in holders if (holder.namespace, holder.pod) == pod}
    return found.pop() if len(found) == 1 else ""
