"""The GPUs and the MPS daemons on them as one node: observed together, changed through one door.

The driver knows nothing of daemons, and the fleet of daemons nothing of GPUs. Here they meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, Self

from nodeagent.errors import DriverError, GpuInUse, NodeagentError, StillInUse
from nodeagent.plan.observed import (
    DeviceDaemon,
    Gpu,
    ObservedNode,
    Place,
    Placement,
)
from nodeagent.plan.problems import Problem
from nodeagent.plan.remedies import in_use_remedy, silent_remedy
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import Destruction, SetComputeMode, StartMps, Step, StopMps
from nodeagent.plan.users import as_used, outside_mps
from nodeagent.structs import replace

if TYPE_CHECKING:  # who only reads imports no more of MPS than that takes
    from nodeagent.gpu.driver import Driver
    from nodeagent.mps.files.publisher import Publisher
    from nodeagent.mps.fleet import Fleet
    from nodeagent.mps.shares import DaemonSpec


DaemonOf = Callable[[str], DeviceDaemon | None]
"""The daemon of a device, by its UUID: the fleet's, or as a survey found those that were left."""


class LastObservation:
    """The node as it was observed last; made before those who observe and those who judge by it."""

    def __init__(self) -> None:
        self.node: ObservedNode | None = None


class NodeReader:
    """The whole node for those who only look. Usable inside `async with`, as the driver is."""

    def __init__(self, driver: Driver, daemon_of: DaemonOf, observation: LastObservation) -> None:
        self._driver = driver
        self._daemon_of = daemon_of
        self._observation = observation
        self._newer: dict[str, Gpu] = {}  # read alone since an observation began, by UUID

    @property
    def seen(self) -> ObservedNode | None:
        return self._observation.node

    async def __aenter__(self) -> Self:
        await self._driver.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._driver.__aexit__(*error)

    async def observe(self, *, details: bool = True) -> ObservedNode:
        """Every GPU as it is now, with its daemons; raises as the driver does. Where nothing has a
        daemon it may be without `details`, as the driver's.

        That takes as long as the slowest GPU. One that was read alone meanwhile is as it was then.
        """
        self._driver.details = self._shared()
        self._newer.clear()
        observed = await self._driver.observe(details=details or bool(self._driver.details))
        newest = (self._newer.get(gpu.uuid, gpu) if gpu.answers else gpu for gpu in observed.gpus)
        gpus = tuple(self._completed(gpu) if gpu.uuid else gpu for gpu in newest)
        self._observation.node = replace(observed, gpus=gpus)
        return self._observation.node

    async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu:
        """Read one GPU, as the driver's does."""
        return self._record(await self._driver.observe_gpu(uuid, details=details))

    async def observe_changes(
        self,
        uuid: str,
        made: Mapping[Placement, int] = MappingProxyType({}),
        gone: Collection[int] = (),
        *,
        users: bool = False,
    ) -> Gpu:
        """Read what was made and destroyed on one GPU since it was seen last; see the driver's."""
        before = self.seen.gpu(uuid) if self.seen else None
        driver = self._driver
        found = await driver.observe_changes(uuid, made, gone, before=before, users=users)
        return self._record(found)

    def _record(self, found: Gpu) -> Gpu:
        self._newer[found.uuid] = found
        gpu = self._completed(found)
        if self.seen is not None:
            gpus = tuple(gpu if known.uuid == gpu.uuid else known for known in self.seen.gpus)
            self._observation.node = replace(self.seen, gpus=gpus)
        return gpu

    def _shared(self) -> frozenset[str]:
        """The devices with a daemon or a changed compute mode, as far as they were seen."""
        gpus = self.seen.gpus if self.seen else ()
        return frozenset(
            device.uuid
            for gpu in gpus
            for device in gpu.devices()
            if self._daemon_of(device.uuid) or self._driver.original.mode(device.uuid)
        )

    def _completed(self, gpu: Gpu) -> Gpu:
        return self._served(gpu).with_mig_devices(lambda _, device: self._served(device))

    def _served(self, device: Place) -> Place:
        """The device with its daemon, and without the daemon's own server: it ends with the daemon
        and does no work of its own.
        """
        daemon = self._daemon_of(device.uuid)
        servers = daemon.servers if daemon else ()
        return replace(device, mps=daemon, usage=device.usage.without(servers))


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
        self._steps_ended = 0

    async def observe(self, *, details: bool = True) -> ObservedNode:
        """Observe the node. Daemons of MIG devices that are no more are ended, unless a step was
        taken meanwhile, and what is published is as the daemons are by now.
        """
        ended = self._steps_ended
        observed = await super().observe(details=details)
        # What a step made or set meanwhile may be missing in what was observed.
        quiet = self._steps_begun == ended
        present = {device.uuid for gpu in observed.gpus for device in gpu.devices()}
        answer = all(gpu.answers for gpu in observed.gpus)
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
        self._health.observed_node(ObservedNode((gpu,)))  # an event may name one made just now
        self.fence()  # its daemons may be new, too
        return (self.seen.gpu(gpu.uuid) if self.seen else None) or gpu

    def fence(self) -> None:
        """Let what health says now count for the node as it was seen last. Does not block."""
        if self._health is None or self.seen is None:
            return
        self._observation.node, closed = self._health.fenced(self.seen)
        self._fleet.cordon(closed)

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        """Raises GpuInUse unless all that these steps of one GPU destroy is idle."""
        await self._driver.insist_on_idle(steps)

    async def apply(self, step: Step) -> None:
        """Take one step and read back its effect; raises NodeagentError if that is not there.

        A MIG device that was made meanwhile has to be named. Cancelled, it may be half-way: callers
        that want steps to be finished do not pass cancellation on.
        """
        if self._health is not None:
            self._health.begin_step(step)
        self._steps_begun += 1
        done = False
        try:
            await self._apply(step)
            done = True
        finally:
            self._steps_ended += 1
            if self._health is not None:
                self._health.end_step(step, done=done)

    async def _apply(self, step: Step) -> None:
        if isinstance(step, StartMps | SetComputeMode) and not step.device:
            raise NodeagentError.of(
                "instanceGone", profile=step.profile, placement=step.placement, gpu=step.gpu
            )
        if not isinstance(step, StartMps | StopMps):
            await self._driver.apply(step)
            if isinstance(step, SetComputeMode):  # which decides whether a daemon is Ready
                await self.observe_gpu(step.gpu)
            return
        found = self._daemon_of(step.device)
        runs = [found.runs] if found else []
        try:
            if isinstance(step, StartMps):
                runs.append(step.wanted)
                await self._insist_on_members(step)
                await self._fleet.start(step.device, step.wanted)
            else:
                await self._stop(step)
        finally:
            if not all(one.sharing.of_claims for one in runs):
                await self.publish()

    async def publish(self) -> None:
        """Give clients what they need of the daemons there are; what fails is in
        `publishing_problems`, for the daemons do their work without it. Containers get shares that
        claims have by the claims' CDI files.
        """
        async with self._publishing:
            specs = [daemon.spec for daemon in self._fleet.running()]
            specs = [spec for spec in specs if not spec.wanted.sharing.of_claims]
            self.publishing_problems = await asyncio.to_thread(self._publisher.publish, specs)

    async def _insist_on_members(self, step: StartMps) -> None:
        """Raise GpuInUse where another GPU of the daemon cannot be its by now. It is planned GPU by
        GPU, and each may have changed since.
        """
        exclusive = ComputeMode.EXCLUSIVE_PROCESS
        for uuid in step.wanted.devices if not step.runs else ():
            gpu = await self.observe_gpu(uuid)
            others = outside_mps(as_used(gpu).usage)
            why, remedy = "", silent_remedy(gpu)
            if not gpu.answers:
                why = f"does not answer ({gpu.access_reason})"
            elif gpu.in_mig_mode:
                why, remedy = "is in MIG mode", "write mig: disabled beside mps in its entry"
            elif gpu.compute_mode is exclusive and others.in_use and gpu.mps is None:
                why, remedy = f"is in use outside MPS by {others}", in_use_remedy(others)
            if why:
                words = f"the MPS daemon of {step.device} is not started: {gpu.title} {why}"
                raise GpuInUse(words, remedy=remedy)

    async def _stop(self, step: StopMps) -> None:
        """The fleet knows clients, and not to whom a device was given since it was planned."""
        daemon = self._daemon_of(step.device)
        served = daemon.runs.devices if daemon else ()
        for uuid in served or (step.gpu,):
            lost = uuid != step.gpu and self.seen is not None and self.seen.has_lost(uuid)
            with suppress(DriverError) if lost else nullcontext():  # it may be back
                gpu = await self.observe_gpu(uuid)
                lost = lost and not gpu.answers
            if lost:
                continue  # nothing works on it any more
            if not gpu.answers:
                why, mend = gpu.access_reason, silent_remedy(gpu)
                raise GpuInUse.of("mpsUsersUnknown", device=step.device, why=why, mend=mend)
            for device in as_used(gpu).devices():
                if device.uuid in (step.device, *served) and device.usage.in_use:
                    users, mend = device.usage, in_use_remedy(device.usage)
                    raise GpuInUse.of("mpsDeviceUsed", device=step.device, users=users, mend=mend)
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
        modes = (d.compute_mode for d in devices if d.uuid in spec.devices)
        wrong = (mode.value for mode in modes if mode not in (None, wanted))
        return tuple(f"compute mode is {mode} and not {wanted.value}" for mode in wrong)

    return check
