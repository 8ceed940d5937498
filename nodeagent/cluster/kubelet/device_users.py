"""Asks the kubelet which pods hold which devices, and joins that with what the driver reports.

A pod holds its devices from before its first process until after its last, so an allocation
blocks like a process does. No answer means that all are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from nodeagent.cluster.kubelet import allocations
from nodeagent.cluster.kubelet.processes import ProcessPod, ProcessPods
from nodeagent.errors import NodeagentError
from nodeagent.gpu import users
from nodeagent.gpu.users import GpuRef, MigDeviceRef, UnknownUsers, UsageReading, UsageSource
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.plan.users import PodName, Usage, User
from nodeagent.structs import Struct, replace

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient
    from nodeagent.settings import KubeletSettings

_BUSY_PAUSE = 0.05  # seconds; the kubelet serves 100 calls a second, to all that ask it

PodsByPid = Mapping[int, ProcessPod | None]  # by pid; None for a process outside any pod
Recorded = Callable[[], Collection[tuple[str, str]]]
"""Gives the agent's own claims (namespace, name) whose devices are known from their records."""


def kubelet_users(
    settings: KubeletSettings,
    *,
    in_cluster: bool,
    simulated: bool,
    recorded: Recorded | None = None,
) -> KubeletUsage | None:
    """Make the kubelet a source of users; None where the settings say not to ask it.

    With `use: auto` and outside a cluster it is asked once its socket's folder exists. Simulated
    processes are not in /proc, so their pods are not looked up.
    """
    if settings.use == "never" or (settings.use == "auto" and simulated):
        return None
    return KubeletUsage(
        settings.socket,
        deadline=settings.deadline,
        optional=settings.use == "auto" and not in_cluster,
        processes=None if simulated else ProcessPods(),
        recorded=recorded,
    )


class KubeletUsage(UsageSource):
    """The kubelet as a source of users; belongs to one event loop.

    `deadline` in seconds. `optional`: on a node without
    the socket's folder nothing is allocated. `processes` finds the pod of a process. Claims that
    `recorded` knows are left out: their devices are protected by their records.
    """

    is_remote = True

    def __init__(
        self,
        socket: Path,
        *,
        deadline: float,
        optional: bool = False,
        processes: ProcessPods | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        super().__init__()
        self._recorded = recorded
        self._socket = socket
        self._deadline = deadline
        self._optional = optional
        self._processes = processes
        self._client: PodResourcesClient | None = None

    async def with_users(
        self, gpus: Sequence[Gpu], asked: Awaitable[UsageReading] | None = None
    ) -> list[Gpu]:
        """Add allocations as users, and name the pods of processes; `asked`: a question begun."""
        if not any(gpu.answers for gpu in gpus):
            return list(gpus)
        reading = await (asked or self.ask())
        pods = await self._pods_of(gpus)
        return [with_allocations(g, reading, pods) if g.answers else g for g in gpus]

    async def _pods_of(self, gpus: Sequence[Gpu]) -> PodsByPid:
        if self._processes is None:
            return {}
        devices = [device for gpu in gpus if gpu.answers for device in gpu.devices()]
        pids = {user.pid for device in devices for user in device.usage.processes if user.pid}
        return await asyncio.to_thread(self._processes.of, pids)

    async def close(self) -> None:
        await super().close()
        if self._client:
            await self._client.close()

    # --- the kubelet ------------------------------------------------------------------------------

    async def read(self) -> UsageReading:
        """What is allocated now; a failure is a reading in which nothing is known."""
        try:
            if self._optional and not await asyncio.to_thread(self._socket.parent.is_dir):
                return Allocations()
            return Allocations(self._unrecorded(await self._allocations()))
        except NodeagentError as error:
            return UnknownUsers(error.message)
        except OSError as error:
            return UnknownUsers(f"{self._socket.parent} cannot be read: {error.strerror}")

    def _unrecorded(self, found: Sequence[allocations.Holding]) -> tuple[allocations.Holding, ...]:
        known = self._recorded() if self._recorded else ()
        return tuple(
            one
            for one in found
            if not (isinstance(one.device, allocations.ByClaim) and one.device.claim in known)
        )

    async def _allocations(self) -> tuple[allocations.Holding, ...]:
        if self._client is None:  # gRPC is imported only where there is a kubelet
            self._client = await asyncio.to_thread(self._make_client)
        from nodeagent.cluster.kubelet.pod_resources import KubeletBusy

        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline
        while True:
            try:
                return await self._client.allocations()
            except KubeletBusy:
                if loop.time() + _BUSY_PAUSE > until:
                    raise
            await asyncio.sleep(_BUSY_PAUSE)

    def _make_client(self) -> PodResourcesClient:
        from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient

        running = self._processes.running if self._processes else frozenset
        return PodResourcesClient(self._socket, deadline=self._deadline, running=running)


# --- what was allocated ---------------------------------------------------------------------------


class Allocations(Struct, frozen=True):
    """Everything that was allocated at one moment."""

    holdings: tuple[allocations.Holding, ...] = ()

    def users(self, device: MigDeviceRef) -> Usage:
        """Who was given the MIG device, or may have been."""
        return self._usage(device.minor, lambda held: _is_device(held, device))

    def users_of_gpu(self, gpu: GpuRef) -> Usage:
        """Who was given the GPU itself, or may have been."""
        return self._usage(gpu.minor, lambda held: _is_gpu(held, gpu))

    def _usage(self, minor: int | None, is_held: Callable[[allocations.DeviceId], bool]) -> Usage:
        found = tuple(sorted({_user(one) for one in self.holdings if is_held(one.device)}))
        for one in self.holdings:
            if isinstance(one.device, allocations.Anywhere):
                reason = (
                    f"pod {one.pod} was given the device {one.device.name!r}, "
                    "and it is not known which one that is"
                )
                return Usage(found, known=False, reason=reason)
        if minor is None and any(
            isinstance(one.device, allocations.ByFile | allocations.ByPlace)
            for one in self.holdings
        ):
            reason = "the driver does not report which device file the GPU has"
            return Usage(found, known=False, reason=reason)
        return Usage(found)


def _user(one: allocations.Holding) -> User:
    pod = one.pod
    return User(0, source="kubelet", namespace=pod.namespace, pod=pod.name, container=one.container)


def _is_device(held: allocations.DeviceId, device: MigDeviceRef) -> bool:
    """Whether what is held is this MIG device, a part of it or its GPU instance, not the GPU."""
    match held:
        case allocations.ByUuid(uuid):
            return bool(device.uuid) and uuid == device.uuid.lower()
        case allocations.ByFile(minor, instance):
            return (minor, instance) == (device.minor, device.gpu_instance)
        case allocations.ByPlace(minor, start):
            place = device.placement
            return minor == device.minor and (place is None or bool(place.mask >> start & 1))
        case allocations.ByClaim(gpu, start):
            if start is None or gpu != device.gpu.lower():
                return False
            return device.placement is None or device.placement.start == start
        case allocations.Anywhere():
            return False  # `Allocations._usage` has it make all users unknown
        case _:
            assert_never(held)


def _is_gpu(held: allocations.DeviceId, gpu: GpuRef) -> bool:
    """Whether what is held is the GPU as a whole, or an instance that it does not have."""
    match held:
        case allocations.ByUuid(uuid):
            return uuid == gpu.gpu.lower()
        case allocations.ByFile(minor, instance):
            return minor == gpu.minor and instance is None
        case allocations.ByPlace(minor, start):
            if minor != gpu.minor or gpu.instances is None:
                return False
            return not any(place.mask >> start & 1 for place in gpu.instances)
        case allocations.ByClaim(uuid, start):
            return start is None and uuid == gpu.gpu.lower()
        case allocations.Anywhere():
            return False
        case _:
            assert_never(held)


# --- joined with what the driver sees -------------------------------------------------------------


def with_allocations(gpu: Gpu, reading: UsageReading, pods: PodsByPid) -> Gpu:
    """Add the allocations of the GPU and its devices as users, and name the pods of processes."""

    def device_with(instance: GpuInstance, device: ComputeInstance) -> ComputeInstance:
        holders = reading.users(users.mig_device_of(gpu, instance, device))
        return replace(device, usage=_joined(device.usage, holders, pods))

    usage = _joined(gpu.usage, reading.users_of_gpu(users.whole_gpu(gpu)), pods)
    return replace(gpu, usage=usage).with_mig_devices(device_with)


def _joined(usage: Usage, holders: Usage, pods: PodsByPid) -> Usage:
    processes = tuple(_named(user, holders.processes, pods) for user in usage.processes)
    # Only a process whose cgroup proves its pod stands for the pod's allocation. One that was
    # named because the pod alone holds the device may be another's, an MPS server say, and would
    # take the allocation along when it is left out.
    shown = {user.in_pod for user in processes if user.in_pod and _is_proven(user, pods)}
    return replace(usage, processes=processes).together(holders.without(pods=shown))


def _is_proven(user: User, pods: PodsByPid) -> bool:
    found = pods.get(user.pid) if user.pid else None
    return found is not None and found.name is not None


def _named(user: User, holders: Sequence[User], pods: PodsByPid) -> User:
    """The process with its pod: its cgroup's, else the only one that holds the device."""
    if user.pod or not user.pid:
        return user
    if user.pid in pods:
        found = pods[user.pid]
        if found is None:
            return user  # a process of the machine's own
        if found.name is not None:
            return _of_pod(user, found.name, found.container or _container(found.name, holders))
    holding = {holder.in_pod for holder in holders}
    pod = holding.pop() if len(holding) == 1 else None
    return _of_pod(user, pod, _container(pod, holders)) if pod else user


def _of_pod(user: User, pod: PodName, container: str) -> User:
    return replace(user, namespace=pod.namespace, pod=pod.name, container=container)


def _container(pod: PodName, holders: Sequence[User]) -> str:
    """The pod's container that holds the device, if it is one."""
    found = {holder.container for holder in holders if holder.in_pod == pod}
    return found.pop() if len(found) == 1 else ""
