"""Applies single steps: each in its GPU's thread, but for those that only nvidia-smi can take.

For a reset NVML is shut down in this process: the driver resets no GPU that anybody has open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse
from nodeagent.gpu.all_gpus import AllGpus, is_well
from nodeagent.gpu.nvml_errors import about
from nodeagent.gpu.pool import GpuHandle, GpuPool
from nodeagent.gpu.recent import FRESH
from nodeagent.gpu.steps.change import Change, otherwise
from nodeagent.gpu.steps.destruction import insist_on_idle_devices
from nodeagent.gpu.steps.reset import reset_gpu
from nodeagent.gpu.steps.taking import insist_on_gpu, name_of, take, takes_away
from nodeagent.gpu.steps.time_slice import set_time_slice
from nodeagent.gpu.usage import AllocationReading, AllocationSource, UsageReading
from nodeagent.gpu.usage_reader import UsageReader
from nodeagent.plan.observed import Gpu
from nodeagent.plan.steps import Destruction, GpuStep, ResetGpu, SetTimeSlice

_READINGS = 3  # of the users, before a step is refused because all were too old at its turn

Result = TypeVar("Result")


class Applying:
    """Takes steps; `deadline` in seconds for one of them.

    `clock`, in seconds, gives the age of what was read of the users.
    """

    def __init__(
        self,
        posts: GpuPool,
        gpus: AllGpus,
        *,
        deadline: float,
        reader: UsageReader | None,
        allocations: AllocationSource | None,
        nvidia_smi: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._posts = posts
        self._gpus = gpus
        self._deadline = deadline
        self._reader = reader
        self._allocations = allocations
        self._nvidia_smi = nvidia_smi
        self._clock = clock

    async def take(self, step: GpuStep) -> None:
        """Take the step and read back that it is so; raises DriverError if it is not."""
        if isinstance(step, ResetGpu):
            return await _to_its_end(self._reset(step))
        if isinstance(step, SetTimeSlice):
            return await _to_its_end(self._set_time_slice(step))
        async with self._posts.gate.together():
            post = self._post(step.gpu)
            what = name_of(step)
            if takes_away(step):
                await self._knowing_users(post, lambda change: take(change, step), what=what)
            else:
                await self._call(post, lambda: take(self._change(post), step), what=what)
        return None

    async def check(self, steps: Sequence[Destruction]) -> None:
        """Raises GpuInUse unless all that these steps of one GPU destroy is idle."""
        async with self._posts.gate.together():
            post = self._post(steps[0].gpu)

            def check(change: Change) -> None:
                insist_on_gpu(post.card, steps[0].gpu)
                insist_on_idle_devices(change, steps)

            await self._knowing_users(post, check, what="looking for users")

    async def _knowing_users(
        self, post: GpuHandle, function: Callable[[Change], None], *, what: str
    ) -> None:
        """Call `function` with what the other sources know of users.

        They are read before the wait for the GPU's thread, which another call may make long. A
        device may be allocated meanwhile, so they are read again if they are too old by then, a few
        times and for at most the step's deadline: the watchdog must not take it for a hang.
        """
        until = self._clock() + self._deadline
        for _ in range(_READINGS):
            readings = [await self._reader.read()] if self._reader else []
            allocated = await self._allocations.ask() if self._allocations else None
            read_at = self._clock()

            def job(
                readings: Sequence[UsageReading] = readings,
                allocated: AllocationReading | None = allocated,
                read_at: float = read_at,
            ) -> bool:
                if self._clock() - read_at > FRESH and (readings or allocated is not None):
                    return False
                function(self._change(post, readings, allocated))
                return True

            if await self._call(post, job, what=what):
                return
            if self._clock() > until:
                break
        raise GpuInUse(
            f"{post.worker.name}: {what} was not begun: it waited too long behind other driver "
            f"calls, so that what was read of the users was over {FRESH:g} s old at its turn",
            code=None,
            name="InUse",
            call="",
            remedy="nothing was changed; it is tried again with the next observation",
        )

    def _change(
        self,
        post: GpuHandle,
        readings: Sequence[UsageReading] = (),
        allocated: AllocationReading | None = None,
    ) -> Change:
        """Begun now, in the GPU's thread."""
        return Change(post.card, time.monotonic() + self._deadline, readings, allocated)

    async def _call(self, post: GpuHandle, function: Callable[[], Result], *, what: str) -> Result:
        try:
            return await post.worker.call(
                function, what=what, deadline=self._deadline, changing=True
            )
        except DeadlineExceeded:
            raise
        except DriverError as error:
            post.card.give_up_handle()  # it may be what was wrong, and costs little to get again
            raise about(post.worker.name, error) from error

    async def _set_time_slice(self, step: SetTimeSlice) -> None:
        async with self._posts.gate.together():
            post = self._post(step.gpu)
            try:
                await set_time_slice(
                    self._nvidia_smi, step.gpu, step.time_slice, deadline=self._deadline
                )
            except DriverError as error:
                raise about(post.worker.name, error) from error

    async def _reset(self, step: ResetGpu) -> None:
        """Reset a GPU that is proven idle, while NVML is shut down in this process."""
        async with self._posts.gate.alone():
            post = self._post(step.gpu)
            gpu = await self._gpus.look_at(post)
            _insist_on_idle(gpu)
            if not await self._posts.shut_down():
                raise otherwise(
                    f"{post.worker.name} is not reset: another GPU hangs in the driver, and NVML "
                    "cannot be closed before its call returns"
                )
            try:
                await reset_gpu(self._nvidia_smi, gpu.pci_bus_id, deadline=self._deadline)
            except DriverError as error:
                raise about(post.worker.name, error) from error
            finally:
                await self._posts.start()
            after = await self._gpus.look_without_users(post)
        if not is_well(after):
            raise otherwise(f"{post.worker.name} was reset, but then {after.access_reason}")
        if after.mig and after.mig.current != after.mig.pending:
            raise otherwise(f"{post.worker.name} was reset, but its MIG mode is still pending")

    def _post(self, uuid: str) -> GpuHandle:
        post = self._posts.find(uuid)
        if post is None:
            raise otherwise(f"the driver does not list GPU {uuid} any more")
        return post


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
