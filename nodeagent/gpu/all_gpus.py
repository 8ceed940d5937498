"""Every GPU observed side by side; one that hangs or fails keeps its last known picture.

NVML is shut down and started again when it stopped answering for every GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.mps_memory import mps_memory
from nodeagent.gpu.nvml_errors import about
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.pool import GpuHandle, GpuPool
from nodeagent.gpu.recent import Details
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.usage import AllocationSource, with_users
from nodeagent.gpu.usage_reader import UsageReader
from nodeagent.plan.observed import Access, Gpu, ObservedNode


class AllGpus:
    """The GPUs as they are and as they were last; `deadline` in seconds for reading one of them."""

    def __init__(
        self,
        posts: GpuPool,
        *,
        deadline: float,
        reader: UsageReader | None,
        allocations: AllocationSource | None,
        topology: Topology | None,
    ) -> None:
        self._posts = posts
        self._deadline = deadline
        self._reader = reader
        self._allocations = allocations
        self._topology = topology
        self._last: dict[str, Gpu] = {}
        self.details: Details | None = Details()
        """What to read of MIG devices besides layout and users; None: nothing."""

    async def observe(self) -> ObservedNode:
        """All of them; raises DriverError when the driver fails before it ever told of a GPU."""
        gpus, failure = await self._observe_all()
        if failure or (gpus and not any(is_well(gpu) for gpu in gpus)):
            try:
                if await self._posts.restart():
                    gpus, failure = await self._observe_all()
            except DriverError as error:
                failure = failure or error
        if failure and not gpus:
            raise failure
        if self._topology:
            gpus = [self._topology.described(gpu) for gpu in gpus]
        slow = tuple((p.card.index, p.worker.pace) for p in self._posts.present if p.worker.pace)
        return ObservedNode(tuple(gpus), self._posts.session.version, slow)

    async def observe_gpu(self, uuid: str, details: Details | None) -> Gpu:
        """One of them; raises DriverError when the driver knows no such GPU."""
        async with self._posts.gate.together():
            for post in self._posts:
                if post.card.uuid == uuid:
                    gpu = await self.look_at(post, details)
                    if gpu.uuid == uuid:
                        return self._topology.described(gpu) if self._topology else gpu
        found = (await self.observe()).gpu(uuid)
        if found is None:
            raise _unknown(f"GPU {uuid}")
        return found

    async def mps_memory(self, device: str) -> Mapping[int, int | None]:
        """Bytes by pid of the MPS clients of a GPU or MIG device; raises DriverError."""
        async with self._posts.gate.together():
            post = self._post_of(device)
            try:
                return await post.worker.call(
                    lambda: mps_memory(post.card, device),
                    what="asking for MPS clients",
                    deadline=self._deadline,
                )
            except DeadlineExceeded:
                raise
            except DriverError as error:
                post.card.give_up_handle()
                raise about(post.worker.name, error) from error

    async def look_at(self, post: GpuHandle, details: Details | None = None) -> Gpu:
        """A GPU with its users, inside the gate; never raises for its failure."""
        return (await self._with_users([await self.look_without_users(post, details)]))[0]

    async def look_without_users(
        self, post: GpuHandle, details: Details | None = None, *, confirm: bool = False
    ) -> Gpu:
        """A GPU as NVML tells it, inside the gate; never raises for its failure."""
        try:
            gpu = await post.worker.call(
                lambda: read_gpu(post.card, details, confirm=confirm),
                what="observing it",
                deadline=self._deadline,
            )
        except DeadlineExceeded as error:
            return self._out_of_reach(post, error)
        except DriverError as error:
            post.card.give_up_handle()
            return self._out_of_reach(post, error)
        self._last[gpu.uuid] = gpu
        return gpu

    async def _observe_all(self) -> tuple[list[Gpu], DriverError | None]:
        """All GPUs, and what keeps the driver as a whole from answering, if anything does."""
        async with self._posts.gate.together():
            try:
                await self._posts.enumerate()
            except DriverError as error:
                return [self._out_of_reach(p, error) for p in self._posts.present], error
            looks = (
                self.look_without_users(post, self.details, confirm=True)
                for post in self._posts.present
            )
            gpus = await self._with_users(await asyncio.gather(*looks))
            if self._topology:
                await self._topology.read(gpus)
        seen = {gpu.uuid for gpu in gpus}
        vanished = [_vanished(gpu) for uuid, gpu in self._last.items() if uuid not in seen]
        return [*gpus, *vanished], None

    def known(self, post: GpuHandle) -> Gpu:
        """The GPU as it was seen last; without a UUID when it never told it."""
        return self._last.get(post.card.uuid, post.card.picture)

    def _out_of_reach(self, post: GpuHandle, error: DriverError) -> Gpu:
        access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
        return replace(
            self.known(post), index=post.card.index, access=access, access_reason=str(error)
        )

    async def _with_users(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with the users that only other sources know."""
        found = list(gpus)
        if self._reader and any(is_well(gpu) and gpu.instances for gpu in gpus):
            reading = await self._reader.read()
            found = [with_users(gpu, [reading]) if is_well(gpu) else gpu for gpu in gpus]
        return await self._allocations.joined(found) if self._allocations else found

    def _post_of(self, device: str) -> GpuHandle:
        """The GPU that is the device or, when it was last looked at, had it as a MIG device."""
        for post in self._posts:
            known = self._last.get(post.card.uuid)
            instances = known.instances if known else ()
            if post.card.uuid == device or any(
                c.uuid == device for i in instances for c in i.compute
            ):
                return post
        raise _unknown(f"device {device}")


def is_well(gpu: Gpu) -> bool:
    """Whether the driver told of it when it was asked."""
    return gpu.access is Access.OK


def _vanished(gpu: Gpu) -> Gpu:
    reason = "the driver does not list it any more; look for it with lspci, and reboot the node"
    return replace(gpu, access=Access.LOST, access_reason=reason)


def _unknown(what: str) -> DriverError:
    return DriverError(
        f"the driver knows no {what}",
        code=None,
        name="NotFound",
        call="",
        remedy="`nodeagent profiles` lists the GPUs of this node",
    )
