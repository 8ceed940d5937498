"""The only thing above this package that talks to the driver: observe GPUs, apply steps.

Each GPU has a worker thread; one that hangs or fails becomes `Unknown` or `Lost` with its last
known picture, and the others go on. NVML itself is shut down and started again when it stopped
answering for every GPU, and around a GPU reset, which the driver does not do while anybody, this
process included, has the GPU open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse, GpuLost
from nodeagent.gpu.card import Card
from nodeagent.gpu.change import Change, otherwise
from nodeagent.gpu.gate import Gate
from nodeagent.gpu.mps_memory import mps_memory
from nodeagent.gpu.nvml_errors import about, unavailable
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.reset import reset_gpu
from nodeagent.gpu.session import Session
from nodeagent.gpu.taking import name_of, take, takes_away
from nodeagent.gpu.time_slice import read_time_slice, set_time_slice
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.usage import AllocationSource, UsageSource, with_users
from nodeagent.gpu.usage_reader import UsageReader
from nodeagent.gpu.workers import Worker
from nodeagent.planning.observed import Access, Gpu, ObservedNode
from nodeagent.planning.shares import TimeSlice
from nodeagent.planning.steps import ResetGpu, SetTimeSlice, StartMps, Step, StopMps

_LEAVING = 1.0  # seconds: nobody who ends waits long for a driver that hangs


@dataclass(frozen=True, slots=True)
class _Post:
    """A GPU's card and the thread that makes its calls."""

    card: Card
    worker: Worker


class Driver:
    """The node's driver, usable inside `async with`, which raises DriverUnavailable.

    It can be entered again after it was left: a call that hung then is known and not repeated.

    Deadlines are seconds: `observe_deadline` for reading one whole GPU (and for starting NVML),
    `step_deadline` for one step. `usage` knows users of MIG devices that NVML does not see; None
    where there are no others, as under simulation. `allocations` knows to whom devices and GPUs
    were given; None where nobody gives them. `nvidia_smi` is the program that resets GPUs
    and knows their time slices, with leading arguments, if any. `topology` reads NUMA nodes and
    NVLinks; without it they stay unknown.
    """

    def __init__(
        self,
        *,
        observe_deadline: float,
        step_deadline: float,
        usage: UsageSource | None = None,
        allocations: AllocationSource | None = None,
        nvidia_smi: Sequence[str] = ("nvidia-smi",),
        topology: Topology | None = None,
    ) -> None:
        self._observe_deadline = observe_deadline
        self._step_deadline = step_deadline
        self._nvidia_smi = tuple(nvidia_smi)
        self._session = Session(deadline=observe_deadline)
        self._reader = UsageReader(usage, deadline=observe_deadline) if usage else None
        self._allocations = allocations
        self._topology = topology
        self._gate = Gate()
        self._posts: list[_Post] = []
        self._count = 0
        self._last: dict[str, Gpu] = {}

    async def __aenter__(self) -> Self:
        version = self._session.version
        try:
            await self._session.start()
        except DriverError as error:
            await self._leave()
            raise unavailable(error) from error
        except asyncio.CancelledError:
            await self._leave()
            raise
        self._expect_anew(version)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        with suppress(DriverError):
            await self._session.shut_down(self._workers, patience=_LEAVING)
        if self._reader:
            await self._reader.close()
        if self._allocations:
            await self._allocations.close()
        for worker in self._workers:
            worker.close()
        self._session.close()

    @property
    def _workers(self) -> list[Worker]:
        also = [self._topology.worker] if self._topology else []
        return [*(post.worker for post in self._posts), *also]

    # --- observing ------------------------------------------------------------------------------

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, side by side.

        Never raises for one GPU's failure: that GPU has access Unknown or Lost. Raises
        DriverError when the driver as a whole fails before it ever told of a GPU.
        """
        gpus, failure = await self._observe_all()
        if failure or (gpus and not any(_is_well(gpu) for gpu in gpus)):
            try:
                if await self._restart():
                    gpus, failure = await self._observe_all()
            except DriverError as error:
                failure = failure or error
        if failure and not gpus:
            raise failure
        if self._topology:
            gpus = [self._topology.described(gpu) for gpu in gpus]
        return ObservedNode(tuple(gpus), self._session.version)

    async def observe_gpu(self, uuid: str) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU."""
        async with self._gate.together():
            for post in self._posts:
                if post.card.uuid == uuid:
                    gpu = (await self._with_users([await self._look_at(post)]))[0]
                    if gpu.uuid == uuid:
                        return self._topology.described(gpu) if self._topology else gpu
        found = (await self.observe()).gpu(uuid)
        if found is None:
            raise _unknown(f"GPU {uuid}")
        return found

    async def time_slice(self, uuid: str) -> TimeSlice | None:
        """The time slice of a GPU; None when nvidia-smi does not tell it in words that are known.

        It runs that program, so it is asked for only where it matters. Raises DriverError when
        the program cannot be run, fails or is late.
        """
        async with self._gate.together():  # a GPU is reset only while no nvidia-smi holds it
            return await read_time_slice(self._nvidia_smi, uuid, deadline=self._observe_deadline)

    async def mps_memory(self, device: str) -> Mapping[int, int]:
        """Bytes by pid that MPS clients have on a GPU or MIG device, by its UUID.

        A client whose use the driver does not tell is left out. Raises DriverError when there is
        no such device, or the driver does not tell its clients.
        """
        async with self._gate.together():
            post = self._post_of(device)
            try:
                return await post.worker.call(
                    lambda: mps_memory(post.card, device),
                    what="asking for MPS clients",
                    deadline=self._observe_deadline,
                )
            except DeadlineExceeded:
                raise
            except DriverError as error:
                post.card.give_up_handle()
                raise about(post.worker.name, error) from error

    async def _observe_all(self) -> tuple[list[Gpu], DriverError | None]:
        """All GPUs, and what keeps the driver as a whole from answering, if anything does."""
        async with self._gate.together():
            try:
                await self._enumerate()
            except DriverError as error:
                return [self._out_of_reach(p, error) for p in self._posts[: self._count]], error
            present = self._posts[: self._count]
            gpus = await asyncio.gather(*(self._look_at(post) for post in present))
            gpus = await self._with_users(gpus)
            if self._topology:
                await self._topology.read(gpus)
        seen = {gpu.uuid for gpu in gpus}
        vanished = [_vanished(gpu) for uuid, gpu in self._last.items() if uuid not in seen]
        return [*gpus, *vanished], None

    async def _enumerate(self) -> None:
        self._count = await self._session.count()
        for index in range(len(self._posts), self._count):
            self._posts.append(_Post(Card(index, self._session.nvml), Worker(f"GPU {index}")))

    async def _look_at(self, post: _Post) -> Gpu:
        """The GPU as NVML tells it; never raises for its failure."""
        try:
            gpu = await post.worker.call(
                lambda: read_gpu(post.card),
                what="observing it",
                deadline=self._observe_deadline,
            )
        except DeadlineExceeded as error:
            return self._out_of_reach(post, error)
        except DriverError as error:
            post.card.give_up_handle()
            return self._out_of_reach(post, error)
        self._last[gpu.uuid] = gpu
        return gpu

    def _out_of_reach(self, post: _Post, error: DriverError) -> Gpu:
        known = self._last.get(post.card.uuid, post.card.picture)
        access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
        return replace(known, index=post.card.index, access=access, access_reason=str(error))

    async def _with_users(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with the users that only other sources know."""
        found = list(gpus)
        if self._reader and any(_is_well(gpu) and gpu.instances for gpu in gpus):
            reading = await self._reader.read()
            found = [with_users(gpu, [reading]) if _is_well(gpu) else gpu for gpu in gpus]
        return await self._allocations.joined(found) if self._allocations else found

    async def _restart(self) -> bool:
        """Begin anew with the driver, which may have been reloaded; False while a call hangs."""
        async with self._gate.alone():
            version = self._session.version
            try:
                down = await self._session.shut_down(self._workers)
            except DriverError:
                down = True  # NVML says that it was down already
            if down:
                await self._session.start()
                self._expect_anew(version)
            return down

    def _expect_anew(self, version: str) -> None:
        """NVML was started again; `version` of the driver is the one before."""
        for post in self._posts:
            post.card.give_up_handle()
            if version != self._session.version:
                post.card.forget()
        if self._topology:
            self._topology.expect_anew()

    # --- applying -------------------------------------------------------------------------------

    async def apply(self, step: Step) -> None:
        """Take one step and read back that it is so; raises DriverError if it is not.

        A step of an MPS daemon is refused: who supervises daemons takes it. Cancellation takes
        effect when the step has ended, at the latest at its deadline.
        """
        if isinstance(step, StopMps | StartMps):
            raise otherwise("an MPS daemon was to be started or stopped by who has only the driver")
        if all(post.card.uuid != step.gpu for post in self._posts):
            await self.observe_gpu(step.gpu)
        if isinstance(step, ResetGpu):
            return await _to_its_end(self._reset(step))
        if isinstance(step, SetTimeSlice):
            return await _to_its_end(self._set_time_slice(step))
        async with self._gate.together():
            post = self._post(step.gpu)
            takes = takes_away(step)
            readings = [await self._reader.read()] if self._reader and takes else []
            allocated = await self._allocations.ask() if self._allocations and takes else None

            def change() -> None:
                until = time.monotonic() + self._step_deadline
                take(Change(post.card, until, readings, allocated), step)

            await self._call(post, change, what=name_of(step))
        return None

    async def _call(self, post: _Post, function: Callable[[], None], *, what: str) -> None:
        try:
            await post.worker.call(function, what=what, deadline=self._step_deadline, changing=True)
        except DeadlineExceeded:
            raise
        except DriverError as error:
            post.card.give_up_handle()  # it may be what was wrong, and costs little to get again
            raise about(post.worker.name, error) from error

    async def _set_time_slice(self, step: SetTimeSlice) -> None:
        async with self._gate.together():
            post = self._post(step.gpu)
            try:
                await set_time_slice(
                    self._nvidia_smi, step.gpu, step.time_slice, deadline=self._step_deadline
                )
            except DriverError as error:
                raise about(post.worker.name, error) from error

    def _post_of(self, device: str) -> _Post:
        """The GPU that is the device or, when it was last looked at, had it as a MIG device."""
        for post in self._posts:
            known = self._last.get(post.card.uuid)
            instances = known.instances if known else ()
            if post.card.uuid == device or any(
                c.uuid == device for i in instances for c in i.compute
            ):
                return post
        raise _unknown(f"device {device}")

    def _post(self, uuid: str) -> _Post:
        for post in self._posts:
            if post.card.uuid == uuid:
                return post
        raise otherwise(f"the driver does not list GPU {uuid} any more")

    async def _reset(self, step: ResetGpu) -> None:
        """Reset a GPU that is proven idle, while NVML is shut down in this process."""
        async with self._gate.alone():
            post = self._post(step.gpu)
            gpu = (await self._with_users([await self._look_at(post)]))[0]
            _insist_on_idle(gpu)
            if not await self._session.shut_down(self._workers):
                raise otherwise(
                    f"{post.worker.name} is not reset: another GPU hangs in the driver, and NVML "
                    "cannot be closed before its call returns"
                )
            version = self._session.version
            try:
                await reset_gpu(self._nvidia_smi, gpu.pci_bus_id, deadline=self._step_deadline)
            except DriverError as error:
                raise about(post.worker.name, error) from error
            finally:
                await self._session.start()
                self._expect_anew(version)
            after = await self._look_at(post)
        if not _is_well(after):
            raise otherwise(f"{post.worker.name} was reset, but then {after.access_reason}")
        if after.mig and after.mig.current != after.mig.pending:
            raise otherwise(f"{post.worker.name} was reset, but its MIG mode is still pending")


def _insist_on_idle(gpu: Gpu) -> None:
    if gpu.idle:
        return
    usages = [gpu.usage, *(device.usage for i in gpu.instances for device in i.compute)]
    users = gpu.access_reason or "; ".join(str(usage) for usage in usages if usage.in_use)
    raise GpuInUse(
        f"GPU {gpu.index} is not reset, because it is not proven idle: {users}",
        code=None,
        name="InUse",
        call="",
        remedy="end what uses it, or wait for it",
    )


async def _to_its_end(change: Coroutine[object, object, None]) -> None:
    """Run a change that has deadlines of its own; cancellation takes effect after it."""
    task = asyncio.ensure_future(change)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # seen: who cancelled does not want to know
        raise asyncio.CancelledError
    return task.result()


def _unknown(what: str) -> DriverError:
    return DriverError(
        f"the driver knows no {what}",
        code=None,
        name="NotFound",
        call="",
        remedy="`nodeagent profiles` lists the GPUs of this node",
    )


# --- pictures -------------------------------------------------------------------------------------


def _is_well(gpu: Gpu) -> bool:
    return gpu.access is Access.OK


def _vanished(gpu: Gpu) -> Gpu:
    reason = "the driver does not list it any more; look for it with lspci, and reboot the node"
    return replace(gpu, access=Access.LOST, access_reason=reason)
