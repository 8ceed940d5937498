"""The agent's access to the NVIDIA driver: observes GPUs and applies steps.

Each GPU has a worker thread; one that hangs or fails becomes `Unknown` or `Lost` with its last
known state, and the others go on. NVML is shut down and started again when it stopped answering
for every GPU, and around a GPU reset: the driver resets no GPU that any process, this one
included, has open.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

from nodeagent.errors import DeadlineExceeded, DriverError, GpuInUse, NodeagentError
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvidia_smi import reset_gpu, set_time_slice
from nodeagent.gpu.nvml_errors import with_subject
from nodeagent.gpu.observer import Observer
from nodeagent.gpu.open_devices import commands_to_end, holders
from nodeagent.gpu.recent import FRESH
from nodeagent.gpu.steps import instances, modes
from nodeagent.gpu.steps.change import (
    Change,
    StaleReadings,
    cannot_restore,
    in_use,
    other_than_planned,
)
from nodeagent.gpu.users import UsageReading, UsageSource
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import ComputeMode, TimeSlice
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
from nodeagent.signals import Signal
from nodeagent.waiting import uncancelled

GpuChange = TypeVar("GpuChange", bound=GpuStep)
ChangeFunction = Callable[[Change, GpuChange], None]

_READINGS = 3  # of the users, before a step is refused because all were too old at its turn


@dataclass(kw_only=True, eq=False)
class Driver(Observer):
    """The node's driver, usable inside `async with`, which raises DriverUnavailable.

    It can be entered again after it was left: a call that hung then is known and not repeated.

    `step_deadline` is in seconds, for one step. `clock`, in seconds, is for the age of what was
    read of users before a step. `proc_root` shows who has a GPU open that is not reset because of
    that, None where GPUs are simulated. `applied` publishes each step that was begun, whatever
    came of it.
    """

    step_deadline: float
    proc_root: Path | None = Path("/proc")
    clock: Callable[[], float] = time.monotonic
    applied: Signal[Step | None] = field(default_factory=lambda: Signal(None), init=False)

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        """Look for the users of all that these steps of one GPU destroy, before the first goes.

        Raises GpuInUse when there are or may be any, and DriverError. Each step reads them
        again where this reading has become old.
        """
        first = steps[0]
        await self._enumerate(first)
        await self._change(
            first,
            lambda change, _: instances.require_idle_devices(change, steps),
            "looking for users",
            self.sources,
        )

    async def apply(self, step: Step) -> None:
        """Apply one step and read it back; raises NodeagentError if it is not as planned.

        A step of an MPS daemon is refused: its supervisor applies it.
        Cancellation takes effect when the step has ended, at the latest at its deadline.
        """
        await self._enumerate(step)
        try:
            await self._apply(step)
        finally:
            self.applied.publish(step)

    async def _apply(self, step: Step) -> None:
        match step:
            case SetMigMode():
                await self._change(step, modes.set_mig_mode, "changing MIG mode", self.sources)
            case DestroyGpuInstance():
                await self._change(
                    step, instances.destroy_gpu_instance, _destroying(step), self.sources
                )
                await self._forget_modes(step.devices)
            case DestroyComputeInstance():
                what = _destroying(step)
                await self._change(step, instances.destroy_compute_instance, what, self.sources)
                await self._forget_modes((step.device,))
            case CreateGpuInstance():
                await self._change(step, instances.create_gpu_instance, _creating(step))
            case CreateComputeInstance():
                await self._change(step, instances.create_compute_instance, _creating(step))
            case SetComputeMode():
                change = partial(modes.set_compute_mode, original=self.original)
                await self._change(step, change, "setting the compute mode")
            case SetTimeSlice():
                await uncancelled(self._set_time_slice(step))
            case ResetGpu():
                await uncancelled(self._reset(step))
            case StartMps() | StopMps():
                raise other_than_planned("notForDriver")
            case _:
                assert_never(step)

    async def _change(
        self,
        step: GpuChange,
        change: ChangeFunction[GpuChange],
        what: str,
        sources: Sequence[UsageSource] = (),
    ) -> None:
        """Call `change` in the GPU's thread; one that may take a device away with what other
        `sources` know of users.

        These are read before the wait for the GPU's thread, which another call may make long. A
        device may be allocated meanwhile, so they are read again if they are too old by then, a few
        times and for at most the step's deadline: the watchdog must not take it for a hang.
        """
        async with self.pool.lock.shared():
            gpu = self._gpu(step)
            until = self.clock() + self.step_deadline
            looked = False
            for _ in range(_READINGS):
                asked_at = self.clock()  # one may take long, and another's answer age meanwhile
                readings = await asyncio.gather(*(source.ask() for source in sources))
                job = partial(self._attempt, gpu, step, change, readings, asked_at, looked=looked)
                stale = await self._call(
                    gpu, job, what=what, deadline=self.step_deadline, changing=True
                )
                if stale is None:
                    return
                looked |= stale.looked
                if self.clock() > until:
                    break
        raise GpuInUse.of("waitedTooLong", worker=gpu.worker.name, what=what, seconds=f"{FRESH:g}")

    def _attempt(
        self,
        gpu: GpuDevice,
        step: GpuChange,
        function: ChangeFunction[GpuChange],
        readings: Sequence[UsageReading],
        asked_at: float,
        *,
        looked: bool,
    ) -> StaleReadings | None:
        """Apply it, in the GPU's thread, which had a deadline of its own. None: it was done."""
        until = time.monotonic() + self.step_deadline
        change = Change(gpu, until, readings, lambda: self.clock() - asked_at > FRESH, looked)
        try:
            change.require_fresh(looked=False)
            _require_same(gpu, gpu.identity().uuid, step)
            function(change, step)
        except StaleReadings as stale:
            return stale
        return None

    async def _set_time_slice(self, step: SetTimeSlice) -> None:
        gpu, wanted = step.gpu, step.time_slice
        current = await self.time_slice(gpu)
        if current is None:
            raise cannot_restore("time slice", gpu)
        if current is not wanted:
            await asyncio.to_thread(self.original.remember, gpu, current)
            async with self.pool.lock.shared():
                name = self._gpu(step).worker.name
                try:
                    await set_time_slice(self.nvidia_smi, gpu, wanted, deadline=self.step_deadline)
                except DriverError as error:
                    raise with_subject(name, error) from error
        if wanted is self.original.time_slice(gpu):
            await asyncio.to_thread(self.original.forget, gpu, TimeSlice)
        self._fresh_time_slices[gpu] = (asyncio.get_running_loop().time(), wanted)

    async def _forget_modes(self, devices: Sequence[str]) -> None:
        """What is made anew may have the same UUID, but has nothing to be restored to. What cannot
        be written now, as on a full disk, does not make the step one that failed: the next
        observation forgets it.
        """
        for device in devices:
            with suppress(NodeagentError):
                await asyncio.to_thread(self.original.forget, device, ComputeMode)

    async def _reset(self, step: ResetGpu) -> None:
        async with self.pool.lock.exclusive():
            gpu = self._gpu(step)
            name = gpu.worker.name
            before = await self._read(gpu)
            _require_same(gpu, before.uuid, step)
            _require_idle(before)
            if not await self.pool.shut_down():
                raise other_than_planned("hangs", name=name)
            try:
                await reset_gpu(self.nvidia_smi, before.pci_bus_id, deadline=self.step_deadline)
            except GpuInUse as error:
                raise with_subject(name, await self._held(error, before.minor)) from error
            except DeadlineExceeded as error:
                raise with_subject(name, error) from error
            except DriverError as error:  # it will say the same tomorrow
                gpu.no_reset = error.message
                raise with_subject(name, error) from error
            finally:
                await self.pool.start()
            after = await self._read_without_users(gpu)
            _require_same(gpu, after.uuid, step)
        if not after.answers:
            raise other_than_planned("silent", name=name, why=after.access_reason)
        if after.mig and after.mig.current != after.mig.pending:
            gpu.no_reset = "nvidia-smi reported a reset, but the MIG mode is still pending"
            raise other_than_planned("stillPending", name=name, why=gpu.no_reset)

    async def _held(self, error: GpuInUse, minor: int | None) -> GpuInUse:
        """Name the processes that have the GPU open in the refusal of a reset."""
        if self.proc_root is None or minor is None:
            return error
        users = await asyncio.to_thread(holders, minor, self.proc_root)
        if not users:
            return error
        ends = await asyncio.to_thread(commands_to_end, users, self.proc_root)
        who = ", ".join(map(str, users))
        message = f"it is held open by {who}: {error.message}"
        return GpuInUse(message, remedy=f"run {ends}, or reboot")

    async def _enumerate(self, step: Step) -> None:
        """A GPU that was never listed is looked for."""
        if self.pool.find(step.gpu) is None:
            await self.observe_gpu(step.gpu)

    def _gpu(self, step: GpuStep) -> GpuDevice:
        gpu = self.pool.find(step.gpu)
        if gpu is None:
            raise other_than_planned("gpuGone", wanted=step.gpu)
        return gpu


def _destroying(step: Destruction) -> str:
    return f"destroying {step.profile} at {step.placement}"


def _creating(step: CreateGpuInstance | CreateComputeInstance) -> str:
    return f"creating {step.profile} at {step.placement}"


def _require_same(gpu: GpuDevice, found: str, step: GpuStep) -> None:
    """Indices may have moved since the step was planned, as when a GPU fell off the bus."""
    if found != step.gpu:
        raise other_than_planned("otherGpu", index=gpu.index, wanted=step.gpu, found=found)


def _require_idle(gpu: Gpu) -> None:
    if gpu.idle:
        return
    users = gpu.access_reason or "; ".join(str(usage) for usage in gpu.usages if usage.in_use)
    why = f"GPU {gpu.index} is not reset, because it is not proven idle: {users}"
    raise in_use(why, *gpu.usages)
