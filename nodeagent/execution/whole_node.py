"""The GPUs and the MPS daemons on them as one node: observed together, changed through one door.

The driver knows nothing of daemons, and the fleet of daemons nothing of GPUs. Here they meet, with
the memory of what a device was before it was given to MPS or to another time slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from nodeagent.errors import DriverError, GpuInUse, NodeagentError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.remembered import Remembered
from nodeagent.mps.fleet import Fleet, InUse
from nodeagent.mps.publishing import Publisher
from nodeagent.mps.shares import DaemonSpec
from nodeagent.planning.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MpsDaemon,
    ObservedNode,
    Usage,
)
from nodeagent.planning.problems import Problem
from nodeagent.planning.shares import ComputeMode, TimeSlice
from nodeagent.planning.steps import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    SetComputeMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)

_TIME_SLICE_IS_FRESH = 30.0  # seconds; only nvidia-smi tells it, and takes its time


class Daemons(Protocol):
    """Who knows the daemons: the fleet, or a survey of what an earlier agent left."""

    def daemon_of(self, device: str) -> MpsDaemon | None: ...


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Daemons as they were found by somebody who does not supervise them."""

    daemons: Mapping[str, MpsDaemon]

    def daemon_of(self, device: str) -> MpsDaemon | None:
        return self.daemons.get(device)


class SeenNode:
    """The whole node for those who only look. Usable inside `async with`, as the driver is.

    With `time_slices` every GPU's time slice is asked for, which takes a program's run for each;
    else only those of GPUs on which the agent changed it.
    """

    def __init__(
        self, driver: Driver, daemons: Daemons, remembered: Remembered, *, time_slices: bool
    ) -> None:
        self._driver = driver
        self._daemons = daemons
        self._remembered = remembered
        self._all_time_slices = time_slices
        self._time_slices: dict[str, tuple[float, TimeSlice | None]] = {}
        self.seen: ObservedNode | None = None

    async def __aenter__(self) -> Self:
        await self._driver.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._driver.__aexit__(kind, error, traceback)

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, with its daemons; raises as the driver does."""
        observed = await self._driver.observe()
        gpus = [await self._completed(gpu) for gpu in observed.gpus]
        self.seen = replace(observed, gpus=tuple(gpus))
        return self.seen

    async def observe_gpu(self, uuid: str) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU."""
        gpu = await self._completed(await self._driver.observe_gpu(uuid))
        if self.seen is not None:
            gpus = tuple(gpu if known.uuid == uuid else known for known in self.seen.gpus)
            self.seen = replace(self.seen, gpus=gpus)
        return gpu

    async def _completed(self, gpu: Gpu) -> Gpu:
        if not gpu.uuid:
            return gpu
        slice_now = await self._time_slice(gpu)
        return replace(
            gpu,
            mps=self._daemons.daemon_of(gpu.uuid),
            usage=self._users(gpu.usage, gpu.uuid),
            earlier_mode=self._remembered.earlier_mode(gpu.uuid),
            time_slice=slice_now,
            earlier_time_slice=self._remembered.earlier_time_slice(gpu.uuid),
            instances=tuple(map(self._completed_instance, gpu.instances)),
        )

    def _completed_instance(self, instance: GpuInstance) -> GpuInstance:
        return replace(instance, compute=tuple(map(self._completed_device, instance.compute)))

    def _completed_device(self, device: ComputeInstance) -> ComputeInstance:
        return replace(
            device,
            mps=self._daemons.daemon_of(device.uuid),
            usage=self._users(device.usage, device.uuid),
            earlier_mode=self._remembered.earlier_mode(device.uuid),
        )

    def _users(self, usage: Usage, device: str) -> Usage:
        """Without the daemon's own server: it goes with the daemon, and is nobody's work."""
        daemon = self._daemons.daemon_of(device)
        if daemon is None:
            return usage
        left = tuple(user for user in usage.processes if user.pid not in daemon.servers)
        return replace(usage, processes=left)

    async def _time_slice(self, gpu: Gpu) -> TimeSlice | None:
        concerned = (
            self._all_time_slices
            or gpu.uuid in self._time_slices
            or self._remembered.earlier_time_slice(gpu.uuid) is not None
        )
        if not concerned or gpu.access is not Access.OK or (gpu.mig and gpu.mig.current):
            return None
        now = asyncio.get_running_loop().time()
        read_at, known = self._time_slices.get(gpu.uuid, (-_TIME_SLICE_IS_FRESH, None))
        if known is not None and now - read_at < _TIME_SLICE_IS_FRESH:
            return known
        with suppress(DriverError):  # it is not known then, which the plan copes with
            known = await self._driver.time_slice(gpu.uuid)
            self._time_slices[gpu.uuid] = (now, known)
            return known
        return None


class WholeNode(SeenNode):
    """The whole node for the one who changes it. The fleet is the caller's, to enter and leave.

    `exclusive`: a daemon is only Ready while its device is in compute mode EXCLUSIVE_PROCESS.
    """

    def __init__(
        self,
        driver: Driver,
        fleet: Fleet,
        remembered: Remembered,
        publisher: Publisher,
        *,
        exclusive: bool,
        time_slices: bool = False,
    ) -> None:
        super().__init__(driver, fleet, remembered, time_slices=time_slices)
        self._fleet = fleet
        self._exclusive = exclusive
        self._publisher = publisher
        self._publishing = asyncio.Lock()
        self.publishing_problems: tuple[Problem, ...] = ()

    async def observe(self) -> ObservedNode:
        """As for those who only look. Daemons of MIG devices that are no more are ended, and what
        is published is as the daemons are by now.
        """
        observed = await super().observe()
        if observed.gpus and all(gpu.access is Access.OK for gpu in observed.gpus):
            present = {device for gpu in observed.gpus for device in devices_of(gpu)}
            gone = {state.device for state in self._fleet.statuses()} - present
            if gone:
                await self._fleet.keep_only(present)
            await asyncio.to_thread(self._tidy_memory, observed, present)
        await self.publish()
        return observed

    async def apply(self, step: Step) -> None:
        """Take one step and read back that it is so; raises NodeagentError if it is not.

        A MIG device that was made meanwhile has to be named. Cancelled, it may be half-way: who
        wants steps to be finished does not pass cancellation on.
        """
        match step:
            case StartMps(device="") | SetComputeMode(device=""):
                raise _not_made(step)
            case StopMps(device=device):
                await self._stop(device)
            case StartMps(device=device, wanted=wanted):
                try:
                    await self._fleet.start(device, wanted)
                finally:
                    await self.publish()
            case SetComputeMode():
                await self._set_compute_mode(step)
            case SetTimeSlice():
                await self._set_time_slice(step)
            case DestroyGpuInstance(devices=devices):
                await self._driver.apply(step)
                await self._forget(devices)
            case DestroyComputeInstance(device=device):
                await self._driver.apply(step)
                await self._forget((device,))
            case _:
                await self._driver.apply(step)

    async def publish(self) -> None:
        """Give clients what they need of the daemons there are; what fails is told by
        `publishing_problems`, for the daemons do their work without it.
        """
        async with self._publishing:
            shared = {d.device: (d.spec, d.wanted) for d in self._fleet.running()}
            self.publishing_problems = await asyncio.to_thread(self._publisher.publish, shared)

    async def differences(self, spec: DaemonSpec) -> tuple[str, ...]:
        """What else, beside its limits, keeps a daemon from being as it has to be."""
        if not self._exclusive or self.seen is None:  # at the start nothing was looked at yet
            return ()
        mode = self._modes().get(spec.device)
        if mode is None or mode is ComputeMode.EXCLUSIVE_PROCESS:
            return ()
        return (f"compute mode is {mode.value} and not {ComputeMode.EXCLUSIVE_PROCESS.value}",)

    # --- steps ----------------------------------------------------------------------------------

    async def _stop(self, device: str) -> None:
        try:
            await self._fleet.stop(device)
        except InUse as error:
            raise in_use(error) from error
        finally:
            await self.publish()

    async def _set_compute_mode(self, step: SetComputeMode) -> None:
        device = step.device
        gpu = await self.observe_gpu(step.gpu)
        current = _modes_of(gpu).get(device) if gpu.access is Access.OK else None
        if current is None:
            raise _cannot_restore("compute mode", device)
        if current is not step.mode:
            await asyncio.to_thread(self._remembered.remember_mode, device, current)
        await self._driver.apply(step)
        if step.mode is self._remembered.earlier_mode(device):
            await asyncio.to_thread(self._remembered.forget_mode, device)
        await self.observe_gpu(step.gpu)

    async def _set_time_slice(self, step: SetTimeSlice) -> None:
        current = await self._driver.time_slice(step.gpu)
        if current is None:
            raise _cannot_restore("time slice", step.gpu)
        if current is not step.time_slice:
            await asyncio.to_thread(self._remembered.remember_time_slice, step.gpu, current)
        await self._driver.apply(step)
        if step.time_slice is self._remembered.earlier_time_slice(step.gpu):
            await asyncio.to_thread(self._remembered.forget_time_slice, step.gpu)
        now = asyncio.get_running_loop().time()
        self._time_slices[step.gpu] = (now, step.time_slice)

    async def _forget(self, devices: Iterable[str]) -> None:
        """What is made anew may have the same UUID, but has nothing to be restored to."""
        for device in devices:
            await asyncio.to_thread(self._remembered.forget_mode, device)

    def _tidy_memory(self, observed: ObservedNode, present: Collection[str]) -> None:
        self._remembered.prune(present)
        self._remembered.settle(observed.gpus)

    def _modes(self) -> Mapping[str, ComputeMode | None]:
        gpus = self.seen.gpus if self.seen else ()
        return {device: mode for gpu in gpus for device, mode in _modes_of(gpu).items()}


def _not_made(step: StartMps | SetComputeMode) -> NodeagentError:
    return NodeagentError(
        f"there is no new {step.profile} at {step.placement} of {step.gpu} that waits for it",
        remedy="look for another program that changes MIG instances on this node",
    )


def _cannot_restore(what: str, device: str) -> NodeagentError:
    return NodeagentError(
        f"the {what} of {device} is not known, so it is not changed: it could not be restored",
        remedy="see what nvidia-smi says of it",
    )


def in_use(error: NodeagentError) -> GpuInUse:
    """The same error as one that says of a GPU that it is in use."""
    return GpuInUse(error.message, code=None, name="InUse", call="", remedy=error.remedy)


def devices_of(gpu: Gpu) -> Iterator[str]:
    """UUIDs of everything on the GPU that can have a daemon: itself and its MIG devices."""
    yield gpu.uuid
    yield from (device.uuid for instance in gpu.instances for device in instance.compute)


def _modes_of(gpu: Gpu) -> Mapping[str, ComputeMode | None]:
    devices = {d.uuid: d.compute_mode for i in gpu.instances for d in i.compute}
    return {gpu.uuid: gpu.compute_mode, **devices}
