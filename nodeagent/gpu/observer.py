"""Observes all GPUs side by side; one that hangs or fails keeps its last known state.

NVML is shut down and started again when it stopped answering for every GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.capability_files import UsageReader
from nodeagent.gpu.nvml_errors import about
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.pool import GpuHandle, GpuPool
from nodeagent.gpu.recent import Details
from nodeagent.gpu.steps.change import mig_device
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.users import AllocationSource, with_users
from nodeagent.plan.observed import Access, Gpu, ObservedNode


class GpuObserver:
    """Knows each GPU as it was observed last. `deadline` in seconds, for reading one GPU.

    `details` is what to read of MIG devices besides layout and users; None: nothing.
    """

    def __init__(
        self,
        pool: GpuPool,
        *,
        deadline: float,
        reader: UsageReader | None,
        allocations: AllocationSource | None,
        topology: Topology | None,
    ) -> None:
        self.details: Details | None = Details()
        self._pool = pool
        self._deadline = deadline
        self._reader = reader
        self._allocations = allocations
        self._topology = topology
        self._last: dict[str, Gpu] = {}

    async def observe(self) -> ObservedNode:
        """All GPUs; raises DriverError when the driver fails before it ever listed one."""
        gpus, failure = await self._observe_all()
        if failure or (gpus and not any(answers(gpu) for gpu in gpus)):
            try:
                if await self._pool.restart():
                    gpus, failure = await self._observe_all()
            except DriverError as error:
                failure = failure or error
        if failure and not gpus:
            raise failure
        slow = ((gpu.device.index, gpu.worker.pace) for gpu in self._pool.present)
        return ObservedNode(
            tuple(map(self._with_topology, gpus)),
            self._pool.driver_version,
            tuple((index, pace) for index, pace in slow if pace),
        )

    async def observe_gpu(self, uuid: str, details: Details | None) -> Gpu:
        """One of them; raises DriverError when the driver knows no such GPU."""
        async with self._pool.lock.shared():
            handle = self._pool.find(uuid)
            if handle is not None:
                gpu = await self.read(handle, details)
                if gpu.uuid == uuid:
                    return self._with_topology(gpu)
        found = (await self.observe()).gpu(uuid)
        if found is None:
            raise _unknown(f"GPU {uuid}")
        return found

    async def mps_memory(self, uuid: str) -> Mapping[int, int | None]:
        """Bytes by pid of the MPS clients of a GPU or MIG device; raises DriverError."""
        async with self._pool.lock.shared():
            gpu = self._handle_of(uuid)
            device, nvml = gpu.device, gpu.device.nvml

            def read() -> Mapping[int, int | None]:
                whole = uuid == device.identity().uuid
                found = nvml.mps_processes(device.handle if whole else mig_device(device, uuid))
                return {process.pid: process.memory for process in found}

            try:
                return await gpu.worker.call(
                    read, what="asking for MPS clients", deadline=self._deadline
                )
            except DeadlineExceeded:
                raise
            except DriverError as error:
                device.give_up_handle()
                raise about(gpu.worker.name, error) from error

    def known(self, gpu: GpuHandle) -> Gpu:
        """The GPU as it was observed last; without a UUID when it never gave it."""
        return self._last.get(gpu.device.uuid, gpu.device.picture)

    async def read(self, gpu: GpuHandle, details: Details | None = None) -> Gpu:
        """A GPU with its users, while the lock is held; never raises for its failure."""
        return (await self._with_users([await self.read_without_users(gpu, details)]))[0]

    async def read_without_users(
        self, gpu: GpuHandle, details: Details | None = None, *, confirm: bool = False
    ) -> Gpu:
        """A GPU as NVML reports it, while the lock is held; never raises for its failure."""
        try:
            found = await gpu.worker.call(
                lambda: read_gpu(gpu.device, details, confirm=confirm),
                what="observing it",
                deadline=self._deadline,
            )
        except DeadlineExceeded as error:
            return self._unreachable(gpu, error)
        except DriverError as error:
            gpu.device.give_up_handle()
            return self._unreachable(gpu, error)
        self._last[found.uuid] = found
        return found

    async def _observe_all(self) -> tuple[list[Gpu], DriverError | None]:
        """All GPUs, and why the driver as a whole does not answer, if it does not."""
        async with self._pool.lock.shared():
            try:
                await self._pool.enumerate()
            except DriverError as error:
                return [self._unreachable(gpu, error) for gpu in self._pool.present], error
            reads = (
                self.read_without_users(gpu, self.details, confirm=True)
                for gpu in self._pool.present
            )
            gpus = await self._with_users(await asyncio.gather(*reads))
            if self._topology:
                await self._topology.read(gpus)
        seen = {gpu.uuid for gpu in gpus}
        vanished = [_vanished(gpu) for uuid, gpu in self._last.items() if uuid not in seen]
        return [*gpus, *vanished], None

    def _unreachable(self, gpu: GpuHandle, error: DriverError) -> Gpu:
        access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
        known = self.known(gpu)
        return replace(known, index=gpu.device.index, access=access, access_reason=str(error))

    async def _with_users(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with the users that only other sources know."""
        found = list(gpus)
        if self._reader and any(answers(gpu) and gpu.instances for gpu in gpus):
            reading = await self._reader.read()
            found = [with_users(gpu, [reading]) if answers(gpu) else gpu for gpu in gpus]
        return await self._allocations.joined(found) if self._allocations else found

    def _with_topology(self, gpu: Gpu) -> Gpu:
        return self._topology.described(gpu) if self._topology else gpu

    def _handle_of(self, uuid: str) -> GpuHandle:
        """The GPU that is the device or, when it was last observed, had it as a MIG device."""
        for gpu in self._pool:
            instances = self.known(gpu).instances
            if gpu.device.uuid == uuid or any(c.uuid == uuid for i in instances for c in i.compute):
                return gpu
        raise _unknown(f"device {uuid}")


def answers(gpu: Gpu) -> bool:
    """Whether the driver answered for it when it was observed."""
    return gpu.access is Access.OK


def _vanished(gpu: Gpu) -> Gpu:
    reason = "the driver does not list it any more; look for it with lspci, and reboot the node"
    return replace(gpu, access=Access.LOST, access_reason=reason)


def _unknown(what: str) -> DriverError:
    return DriverError(
        f"the driver knows no {what}",
        name="NotFound",
        remedy="`nodeagent profiles` lists the GPUs of this node",
    )
