"""The GPUs and the MPS daemons on them as one node: observed together, changed through one door.

The driver knows nothing of daemons, and the fleet of daemons nothing of GPUs. Here they meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nodeagent.errors import GpuInUse, NodeagentError, StillInUse
from nodeagent.execute.node_reader import LastObservation, NodeReader
from nodeagent.gpu.driver import Driver
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.mps_users import as_used
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import Destruction, SetComputeMode, StartMps, Step, StopMps


class HealthWatch(Protocol):
    """Knows what is unhealthy, and is notified of what is done to the GPUs."""

    def observed_node(self, observed: ObservedNode) -> None: ...

    def fenced(self, observed: ObservedNode) -> tuple[ObservedNode, Mapping[str, str]]:
        """What was observed, with the unhealthy devices marked, and the devices that accept no new
        clients, each with the reason.
        """
        ...

    def begin_step(self, step: Step) -> None: ...

    def end_step(self, step: Step, *, done: bool) -> None: ...


class NodeController(NodeReader):
    """The whole node for the one who changes it. The fleet is the caller's, to enter and leave.

    `health` marks what is unhealthy in what is observed; MPS daemons accept no new clients there.
    """

    def __init__(
        self,
        driver: Driver,
        fleet: Fleet,
        publisher: Publisher,
        observation: LastObservation,
        *,
        health: HealthWatch | None = None,
    ) -> None:
        super().__init__(driver, fleet.daemon_of, observation)
        self._fleet = fleet
        self._health = health
        self._publisher = publisher
        self._publishing = asyncio.Lock()
        self.publishing_problems: tuple[Problem, ...] = ()
        self._steps_begun = 0
        self._steps_running = 0

    async def observe(self) -> ObservedNode:
        """As for those who only look. Daemons of MIG devices that are no more are ended, unless a
        step was taken meanwhile, and what is published is as the daemons are by now.
        """
        begun, quiet = self._steps_begun, self._steps_running == 0
        observed = await super().observe()
        # What a step made or set meanwhile may be missing in what was observed.
        quiet = quiet and begun == self._steps_begun
        present = {device.uuid for gpu in observed.gpus for device in gpu.devices()}
        answer = all(gpu.access is Access.OK for gpu in observed.gpus)
        # A MIG device of which the driver does not say which it is, may be any of those missing.
        if quiet and present and answer and "" not in present:
            if any(state.device not in present for state in self._fleet.statuses()):
                await self._fleet.keep_only(present)
            original = self._driver.original
            await asyncio.to_thread(original.prune, present)
            await asyncio.to_thread(original.settle, observed.gpus)
        if self._health is not None:
            self._health.observed_node(observed)
        self.fence()
        await self.publish()
        return self.seen or observed

    def _record(self, found: Gpu) -> Gpu:
        gpu = super()._record(found)
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
        if self._health is not None:
            self._health.begin_step(step)
        self._steps_begun += 1
        self._steps_running += 1
        done = False
        try:
            await self._apply(step)
            done = True
        finally:
            self._steps_running -= 1
            if self._health is not None:
                self._health.end_step(step, done=done)

    async def _apply(self, step: Step) -> None:
        """MPS steps are the fleet's, all others the driver's."""
        if isinstance(step, StartMps | SetComputeMode) and not step.device:
            raise NodeagentError(
                f"there is no new {step.profile} at {step.placement} of {step.gpu} that waits for "
                "it",
                remedy="run `nodeagent check`: it finds other programs that change MIG",
            )
        if not isinstance(step, StartMps | StopMps):
            await self._driver.apply(step)
            if isinstance(step, SetComputeMode):  # which decides whether a daemon is Ready
                await self.observe_gpu(step.gpu)
            return
        try:
            if isinstance(step, StartMps):
                await self._fleet.start(step.device, step.wanted)
            else:
                await self._stop(step)
        finally:
            await self.publish()

    async def publish(self) -> None:
        """Give clients what they need of the daemons there are; what fails is in
        `publishing_problems`, for the daemons do their work without it.
        """
        async with self._publishing:
            shared = [(daemon.spec, daemon.wanted) for daemon in self._fleet.running()]
            self.publishing_problems = await asyncio.to_thread(self._publisher.publish, shared)

    async def _stop(self, step: StopMps) -> None:
        """The fleet knows clients, and not to whom the device was given since it was planned."""
        for device in as_used(await self.observe_gpu(step.gpu)).devices():
            if device.uuid == step.device and device.usage.in_use:
                raise GpuInUse(
                    f"the MPS daemon of {step.device} is not stopped: its device is in use by "
                    f"{device.usage}",
                    remedy=in_use_remedy(device.usage),
                )
        try:
            await self._fleet.stop(step.device)
        except StillInUse as error:
            raise GpuInUse(error.message, remedy=error.remedy) from error


def compute_mode_check(
    observation: LastObservation, *, exclusive: bool
) -> Callable[[DaemonSpec], tuple[str, ...]]:
    """Finds what else, beside its limits, keeps a daemon from being as it has to be: with
    `exclusive`, it is Ready only while its device is in compute mode EXCLUSIVE_PROCESS.
    """
    wanted = ComputeMode.EXCLUSIVE_PROCESS

    def check(spec: DaemonSpec) -> tuple[str, ...]:
        gpus = observation.node.gpus if exclusive and observation.node else ()
        devices = (device for gpu in gpus for device in gpu.devices())
        mode = next((d.compute_mode for d in devices if d.uuid == spec.device), None)
        if mode is None or mode is wanted:
            return ()
        return (f"compute mode is {mode.value} and not {wanted.value}",)

    return check
