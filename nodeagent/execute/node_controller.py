"""The GPUs and the MPS daemons on them as one node: observed together, changed through one door.

The driver knows nothing of daemons, and the fleet of daemons nothing of GPUs. Here they meet, with
the memory of what a device was before it was given to MPS or to another time slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from nodeagent.errors import GpuInUse, NodeagentError, StillInUse
from nodeagent.execute.node_reader import LastObservation, NodeReader
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.observed import (
    Access,
    Gpu,
    ObservedNode,
    Usage,
)
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    Destruction,
    SetComputeMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)
from nodeagent.plan.usage import as_used


class HealthWatch(Protocol):
    """Knows what is unhealthy, and is notified of what is done to the GPUs."""

    def saw(self, observed: ObservedNode) -> None: ...

    def fenced(self, observed: ObservedNode) -> tuple[ObservedNode, Mapping[str, str]]:
        """What was observed, with the unhealthy devices marked, and the devices that accept no new
        clients, each with the reason.
        """
        ...

    def about_to_take(self, step: Step) -> None: ...

    def has_taken(self, step: Step, *, done: bool) -> None: ...


class NodeController(NodeReader):
    """The whole node for the one who changes it. The fleet is the caller's, to enter and leave.

    `health` marks what is unhealthy in what is observed; MPS daemons accept no new clients there.
    """

    def __init__(
        self,
        driver: Driver,
        fleet: Fleet,
        remembered: OriginalSettings,
        publisher: Publisher,
        observation: LastObservation,
        *,
        time_slices: bool = False,
        health: HealthWatch | None = None,
    ) -> None:
        super().__init__(driver, fleet, remembered, observation, time_slices=time_slices)
        self._fleet = fleet
        self._health = health
        self._publisher = publisher
        self._publishing = asyncio.Lock()
        self.publishing_problems: tuple[Problem, ...] = ()

    async def observe(self) -> ObservedNode:
        """As for those who only look. Daemons of MIG devices that are no more are ended, and what
        is published is as the daemons are by now.
        """
        observed = await super().observe()
        if observed.gpus and all(gpu.access is Access.OK for gpu in observed.gpus):
            present = {device.uuid for gpu in observed.gpus for device in gpu.devices()}
            gone = {state.device for state in self._fleet.statuses()} - present
            if gone:
                await self._fleet.keep_only(present)
            await asyncio.to_thread(self._tidy_memory, observed, present)
        if self._health is not None:
            self._health.saw(observed)
        self.fence()
        await self.publish()
        return self.seen or observed

    async def _record(self, uuid: str, found: Gpu) -> Gpu:
        gpu = await super()._record(uuid, found)
        if self._health is None:
            return gpu
        return self._health.fenced(ObservedNode((gpu,)))[0].gpus[0]

    def fence(self) -> None:
        """Let what health says now count for the node as it was seen last. Does not block."""
        if self._health is None or self.seen is None:
            return
        self._observation.node, closed = self._health.fenced(self.seen)
        self._fleet.close_to_clients(closed)

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        """Raises GpuInUse unless all that these steps of one GPU destroy is idle."""
        await self._driver.insist_on_idle(steps)

    async def apply(self, step: Step) -> None:
        """Take one step and read back that it is so; raises NodeagentError if it is not.

        A MIG device that was made meanwhile has to be named. Cancelled, it may be half-way: who
        wants steps to be finished does not pass cancellation on.
        """
        if self._health is None:
            await self._apply(step)
            return
        self._health.about_to_take(step)
        done = False
        try:
            await self._apply(step)
            done = True
        finally:
            self._health.has_taken(step, done=done)

    async def _apply(self, step: Step) -> None:
        match step:
            case StartMps(device="") | SetComputeMode(device=""):
                raise _not_made(step)
            case StopMps():
                await self._stop(step)
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
        """Give clients what they need of the daemons there are; what fails is in
        `publishing_problems`, for the daemons do their work without it.
        """
        async with self._publishing:
            shared = {d.device: (d.spec, d.wanted) for d in self._fleet.running()}
            self.publishing_problems = await asyncio.to_thread(self._publisher.publish, shared)

    # --- steps ----------------------------------------------------------------------------------

    async def _stop(self, step: StopMps) -> None:
        """The fleet knows clients, and not to whom the device was given since it was planned."""
        gpu = as_used(await self.observe_gpu(step.gpu))
        for device in gpu.devices():
            if device.uuid == step.device and device.usage.in_use:
                raise _not_stopped(step, device.usage)
        try:
            await self._fleet.stop(step.device)
        except StillInUse as error:
            raise in_use(error) from error
        finally:
            await self.publish()

    async def _set_compute_mode(self, step: SetComputeMode) -> None:
        device = step.device
        gpu = await self.observe_gpu(step.gpu, everything=True)
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


def compute_mode_check(
    observation: LastObservation, *, exclusive: bool
) -> Callable[[DaemonSpec], Awaitable[tuple[str, ...]]]:
    """Finds what else, beside its limits, keeps a daemon from being as it has to be: with
    `exclusive`, it is Ready only while its device is in compute mode EXCLUSIVE_PROCESS.
    """
    wanted = ComputeMode.EXCLUSIVE_PROCESS

    async def check(spec: DaemonSpec) -> tuple[str, ...]:
        gpus = observation.node.gpus if exclusive and observation.node else ()
        modes = {device: mode for gpu in gpus for device, mode in _modes_of(gpu).items()}
        mode = modes.get(spec.device)
        if mode is None or mode is wanted:
            return ()
        return (f"compute mode is {mode.value} and not {wanted.value}",)

    return check


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


def _not_stopped(step: StopMps, usage: Usage) -> GpuInUse:
    return in_use(
        NodeagentError(
            f"the MPS daemon of {step.device} is not stopped: its device is in use by {usage}",
            remedy="end what uses it, or wait for it",
        )
    )


def in_use(error: NodeagentError) -> GpuInUse:
    """The same error as one that says of a GPU that it is in use."""
    return GpuInUse(error.message, code=None, name="InUse", call="", remedy=error.remedy)


def _modes_of(gpu: Gpu) -> Mapping[str, ComputeMode | None]:
    return {device.uuid: device.compute_mode for device in gpu.devices()}
