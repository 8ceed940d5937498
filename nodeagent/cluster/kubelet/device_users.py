"""Asks the kubelet which pods hold which devices. No answer means that all are in use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cluster.kubelet.allocated_devices import AllocatedDevices, Owners, with_allocations
from nodeagent.cluster.kubelet.allocations import Holding, PodName
from nodeagent.cluster.kubelet.processes import ProcessPods
from nodeagent.errors import NodeagentError
from nodeagent.gpu.users import UnknownUsers, UsageReading, UsageSource
from nodeagent.plan.observed import Access, Gpu

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient
    from nodeagent.settings import KubeletSettings

_BUSY_PAUSE = 0.05  # seconds; the kubelet serves 100 calls a second, to all that ask it

FinishedAmong = Callable[[Collection[PodName], float], Awaitable[Collection[PodName]]]
"""Which of these pods are known to have ended, found out within so many seconds. Raises nothing."""


def kubelet_users(
    settings: KubeletSettings,
    *,
    in_cluster: bool,
    simulated: bool,
    finished: FinishedAmong | None = None,
) -> KubeletUsage | None:
    """The kubelet as a source of users; None where it is not to be asked at all.

    With `use: auto` and outside a cluster it is asked from when on its socket's folder exists.
    Simulated processes are no processes, so nothing is looked up of them.
    """
    match settings.use:
        case "never":
            return None
        case "auto" if simulated:
            return None
        case "auto":
            must = in_cluster
        case _:
            must = True
    return KubeletUsage(
        settings.socket,
        deadline=settings.deadline,
        optional=not must,
        processes=None if simulated else ProcessPods(),
        finished=finished,
    )


class KubeletUsage(UsageSource):
    """The kubelet as a source of users; belongs to one event loop.

    `deadline` in seconds, for the kubelet and for `finished` each. `optional`: on a node without
    the socket's folder nothing is allocated. `processes` finds the pod of a process.
    """

    def __init__(
        self,
        socket: Path,
        *,
        deadline: float,
        optional: bool = False,
        processes: ProcessPods | None = None,
        finished: FinishedAmong | None = None,
    ) -> None:
        super().__init__()
        self._finished = finished
        self._socket = socket
        self._deadline = deadline
        self._optional = optional
        self._processes = processes
        self._client: PodResourcesClient | None = None

    async def joined(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with allocations as users, and with the pods of processes named."""
        if not any(_answers(gpu) for gpu in gpus):
            return list(gpus)
        reading = await self.ask()
        owners = await self._owners_of(gpus)
        return [with_allocations(g, reading, owners) if _answers(g) else g for g in gpus]

    async def _owners_of(self, gpus: Sequence[Gpu]) -> Owners:
        devices = [device for gpu in gpus if _answers(gpu) for device in gpu.devices()]
        pids = {user.pid for device in devices for user in device.usage.processes if user.pid}
        if self._processes is None or not pids:
            return {}
        return await asyncio.to_thread(self._processes.of, pids)

    # --- the kubelet ------------------------------------------------------------------------------

    async def read(self) -> UsageReading:
        """What is allocated now; a failure is a reading in which nothing is known."""
        try:
            if self._optional and not await asyncio.to_thread(self._socket.parent.is_dir):
                return AllocatedDevices()
            allocations = await self._allocations()
            pods = {one.pod for one in allocations}
            # In this order. Had the API server been asked first, a pod that had finished by then
            # could be replaced by another of its name before the kubelet is asked, and the
            # devices of the new one would count as free.
            gone = await self._finished(pods, self._deadline) if self._finished else ()
            return AllocatedDevices(tuple(one for one in allocations if one.pod not in gone))
        except NodeagentError as error:
            return UnknownUsers(error.message)
        except OSError as error:
            return UnknownUsers(f"{self._socket.parent} cannot be read: {error.strerror}")

    async def _allocations(self) -> tuple[Holding, ...]:
        if self._client is None:  # gRPC is imported only where there is a kubelet
            self._client = await asyncio.to_thread(_make_client, self._socket, self._deadline)
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


def _make_client(socket: Path, deadline: float) -> PodResourcesClient:
    from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient

    return PodResourcesClient(socket, deadline=deadline)


def _answers(gpu: Gpu) -> bool:
    return gpu.access is Access.OK
