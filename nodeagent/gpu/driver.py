"""The agent's access to the NVIDIA driver: observes GPUs and applies steps.

Each GPU has a worker thread; one that hangs or fails becomes `Unknown` or `Lost` with its last
known state, and the others go on. NVML is shut down and started again when it stopped answering
for every GPU, and around a GPU reset: the driver resets no GPU that any process, this one
included, has open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, assert_never

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse
from nodeagent.gpu.capability_files import UsageReader
from nodeagent.gpu.nvidia_smi import read_time_slice, reset_gpu, set_time_slice
from nodeagent.gpu.nvml_errors import about, unavailable
from nodeagent.gpu.observer import GpuObserver, answers
from nodeagent.gpu.pool import GpuHandle, GpuPool
from nodeagent.gpu.recent import FRESH, Details
from nodeagent.gpu.steps.change import Change, in_use, not_as_planned
from nodeagent.gpu.steps.instances import (
    create_compute_instance,
    create_gpu_instance,
    destroy_compute_instance,
    destroy_gpu_instance,
    require_idle_devices,
)
from nodeagent.gpu.steps.modes import set_compute_mode, set_mig_mode
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.users import AllocationReading, AllocationSource, UsageReading, UsageSource
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.shares import TimeSlice
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Destruction,
    GpuStep,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)

Result = TypeVar("Result")
GpuChange = TypeVar("GpuChange", bound=GpuStep)
ChangeFunction = Callable[[Change, GpuChange], None]

_LEAVING = 1.0  # seconds to wait at the end for a driver that hangs
_READINGS = 3  # of the users, before a step is refused because all were too old at its turn


class Driver:
    """The node's driver, usable inside `async with`, which raises DriverUnavailable.

    It can be entered again after it was left: a call that hung then is known and not repeated.

    Deadlines are seconds: `observe_deadline` for reading one whole GPU (and for starting NVML),
    `step_deadline` for one step. `usage` knows users of MIG devices that NVML does not see; None
    where there are no others, as under simulation. `allocations` knows the pods to which devices
    and GPUs are allocated; None outside Kubernetes. `nvidia_smi` is the program that resets GPUs
    and sets time slices, with leading arguments, if any. `topology` reads NUMA nodes and
    NVLinks; without it they stay unknown. `clock`, in seconds, is for the age of what was read of
    users before a step.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = GpuPool(deadline=observe_deadline, topology=topology)
        self.after_step: list[Callable[[Step], None]] = []
        """Called after each step that was begun, whatever came of it."""
        self._observe_deadline = observe_deadline
        self._deadline = step_deadline
        self._nvidia_smi = tuple(nvidia_smi)
        self._reader = UsageReader(usage, deadline=observe_deadline) if usage else None
        self._allocations = allocations
        self._clock = clock
        self._observer = GpuObserver(
            self.pool,
            deadline=observe_deadline,
            reader=self._reader,
            allocations=allocations,
            topology=topology,
        )

    async def __aenter__(self) -> Self:
        try:
            await self.pool.start()
        except DriverError as error:
            await self._leave()
            raise unavailable(error) from error
        except asyncio.CancelledError:
            await self._leave()
            raise
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
            await self.pool.shut_down(patience=_LEAVING)
        if self._reader:
            await self._reader.close()
        if self._allocations:
            await self._allocations.close()
        self.pool.close()

    # --- observing ------------------------------------------------------------------------------

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, side by side.

        Never raises for one GPU's failure: that GPU has access Unknown or Lost. Raises
        DriverError when the driver as a whole fails before it ever listed a GPU.
        """
        return await self._observer.observe()

    async def observe_gpu(self, uuid: str, *, everything: bool = False) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU.

        Memory and compute mode of MIG devices may be half a minute old if no daemon needs them,
        unless `everything` is to be read.
        """
        details = Details(everything=True) if everything else self._observer.details
        return await self._observer.observe_gpu(uuid, details)

    async def read_back(self, uuid: str) -> Gpu:
        """As `observe_gpu`, without memory and compute modes that are not known already."""
        return await self._observer.observe_gpu(uuid, None)

    def read_details(self, *, exact: frozenset[str] = frozenset(), wanted: bool = True) -> None:
        """Whether observations read the memory and compute mode of MIG devices, and how they could
        be divided. Those of `exact` (UUIDs) are read each time, others now and then.
        """
        self._observer.details = Details(exact) if wanted else None

    def known(self, index: int) -> Gpu:
        """The GPU as it was observed last; without UUID and address while it never gave them."""
        return self._observer.known(self.pool[index])

    async def mps_memory(self, device: str) -> Mapping[int, int | None]:
        """Bytes by pid that MPS clients have on a GPU or MIG device, by its UUID.

        None for a client whose use the driver does not report. Raises DriverError when there is
        no such device, or the driver does not list its clients.
        """
        return await self._observer.mps_memory(device)

    async def time_slice(self, uuid: str) -> TimeSlice | None:
        """The time slice of a GPU; None when the output of nvidia-smi is not understood.

        It runs that program, so it is asked for only where it matters. Raises DriverError when
        the program cannot be run, fails or is late.
        """
        async with self.pool.lock.shared():  # a reset waits until no nvidia-smi has the GPU open
            return await read_time_slice(self._nvidia_smi, uuid, deadline=self._observe_deadline)

    # --- applying -------------------------------------------------------------------------------

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        """Look for the users of all that these steps of one GPU destroy, before the first goes.

        Raises GpuInUse when there are or may be any, and DriverError. Each step reads them
        again where this reading has become old.
        """
        first = steps[0]
        if self.pool.find(first.gpu) is None:
            await self.observe_gpu(first.gpu)
        await self._change_users(
            first, lambda change, _: require_idle_devices(change, steps), "looking for users"
        )

    async def apply(self, step: Step) -> None:
        """Apply one step and read it back; raises DriverError if it is not as planned.

        A step of an MPS daemon is refused: its supervisor applies it. Cancellation takes effect
        when the step has ended, at the latest at its deadline.
        """
        if isinstance(step, StopMps | StartMps):
            raise not_as_planned("the driver was asked to start or stop an MPS daemon")
        if self.pool.find(step.gpu) is None:
            await self.observe_gpu(step.gpu)
        try:
            await self._apply(step)
        finally:
            for notify in self.after_step:
                notify(step)

    async def _apply(self, step: GpuStep) -> None:
        match step:
            case SetMigMode():
                await self._change_users(step, set_mig_mode, "changing MIG mode")
            case DestroyGpuInstance():
                await self._change_users(step, destroy_gpu_instance, _destroying(step))
            case DestroyComputeInstance():
                await self._change_users(step, destroy_compute_instance, _destroying(step))
            case CreateGpuInstance():
                await self._change(step, create_gpu_instance, _creating(step))
            case CreateComputeInstance():
                await self._change(step, create_compute_instance, _creating(step))
            case SetComputeMode():
                await self._change(step, set_compute_mode, "setting the compute mode")
            case SetTimeSlice():
                await _uncancelled(self._set_time_slice(step))
            case ResetGpu():
                await _uncancelled(self._reset(step))
            case _:
                assert_never(step)

    async def _change(self, step: GpuChange, change: ChangeFunction[GpuChange], what: str) -> None:
        """Call `change` in the GPU's thread."""
        async with self.pool.lock.shared():
            gpu = self._gpu(step)
            await self._call(gpu, lambda: change(self._begin(gpu, step), step), what=what)

    async def _change_users(
        self, step: GpuChange, change: ChangeFunction[GpuChange], what: str
    ) -> None:
        """Call `change`, which may take a device away, with what other sources know of users.

        They are read before the wait for the GPU's thread, which another call may make long. A
        device may be allocated meanwhile, so they are read again if they are too old by then, a few
        times and for at most the step's deadline: the watchdog must not take it for a hang.
        """
        async with self.pool.lock.shared():
            gpu = self._gpu(step)
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
                    change(self._begin(gpu, step, readings, allocated), step)
                    return True

                if await self._call(gpu, job, what=what):
                    return
                if self._clock() > until:
                    break
        raise GpuInUse(
            f"{gpu.worker.name}: {what} was not begun: it waited too long behind other driver "
            f"calls, so that what was read of the users was over {FRESH:g} s old at its turn",
            remedy="nothing was changed; it is tried again with the next observation",
        )

    def _begin(
        self,
        gpu: GpuHandle,
        step: GpuStep,
        readings: Sequence[UsageReading] = (),
        allocated: AllocationReading | None = None,
    ) -> Change:
        """In the GPU's thread. Indices may have moved since the step was planned."""
        found = gpu.device.identity().uuid
        if found != step.gpu:
            raise not_as_planned(f"GPU {gpu.device.index} is not {step.gpu} any more but {found}")
        return Change(gpu.device, time.monotonic() + self._deadline, readings, allocated)

    async def _call(self, gpu: GpuHandle, function: Callable[[], Result], *, what: str) -> Result:
        try:
            return await gpu.worker.call(
                function, what=what, deadline=self._deadline, changing=True
            )
        except DeadlineExceeded:
            raise
        except DriverError as error:
            gpu.device.give_up_handle()  # it may be what was wrong, and costs little to get again
            raise about(gpu.worker.name, error) from error

    async def _set_time_slice(self, step: SetTimeSlice) -> None:
        async with self.pool.lock.shared():
            gpu = self._gpu(step)
            try:
                await set_time_slice(
                    self._nvidia_smi, step.gpu, step.time_slice, deadline=self._deadline
                )
            except DriverError as error:
                raise about(gpu.worker.name, error) from error

    async def _reset(self, step: ResetGpu) -> None:
        """Reset a GPU that is proven idle, while NVML is shut down in this process."""
        async with self.pool.lock.exclusive():
            gpu = self._gpu(step)
            name = gpu.worker.name
            before = await self._observer.read(gpu)
            _require_idle(before)
            if not await self.pool.shut_down():
                raise not_as_planned(
                    f"{name} is not reset: another GPU hangs in the driver, and NVML cannot be "
                    "closed before its call returns"
                )
            try:
                await reset_gpu(self._nvidia_smi, before.pci_bus_id, deadline=self._deadline)
            except DriverError as error:
                raise about(name, error) from error
            finally:
                await self.pool.start()
            after = await self._observer.read_without_users(gpu)
        if not answers(after):
            raise not_as_planned(f"{name} was reset, but then {after.access_reason}")
        if after.mig and after.mig.current != after.mig.pending:
            raise not_as_planned(f"{name} was reset, but its MIG mode is still pending")

    def _gpu(self, step: GpuStep) -> GpuHandle:
        gpu = self.pool.find(step.gpu)
        if gpu is None:
            raise not_as_planned(f"the driver does not list GPU {step.gpu} any more")
        return gpu


def _destroying(step: Destruction) -> str:
    return f"destroying {step.profile} at {step.placement}"


def _creating(step: CreateGpuInstance | CreateComputeInstance) -> str:
    return f"creating {step.profile} at {step.placement}"


def _require_idle(gpu: Gpu) -> None:
    if gpu.idle:
        return
    usages = [gpu.usage, *(device.usage for i in gpu.instances for device in i.compute)]
    users = gpu.access_reason or "; ".join(str(usage) for usage in usages if usage.in_use)
    raise in_use(f"GPU {gpu.index} is not reset, because it is not proven idle: {users}")


async def _uncancelled(change: Coroutine[object, object, None]) -> None:
    """Run a change that has deadlines of its own; cancellation takes effect after it."""
    task = asyncio.ensure_future(change)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # retrieved, so that asyncio does not log it
        raise asyncio.CancelledError
    return task.result()
