"""The steps of one GPU, taken in order, and how that went.

The first step that fails ends them. Only what shares a finished device (a daemon, a compute mode, a
time slice) may fail alone: the layout is right then, and the other devices go on. The daemons of
one GPU are started side by side, so that a slow one delays no other. A step that has begun is
always finished, also when the caller is cancelled, because a driver call cannot be taken back
half-way.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from nodeagent.errors import DriverError, GpuInUse, GpuLost, error_sentence
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Access, Gpu, ObservedNode, Placement
from nodeagent.plan.plan import GpuPlan, Policy, StepReport, StepResult, Verdict
from nodeagent.plan.planner import inaccessible, layout_of, plan_gpu
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import (
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Destruction,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
)
from nodeagent.reconcile.step_problems import not_as_planned, step_failed
from nodeagent.structs import Struct, replace
from nodeagent.waiting import end_of

# A daemon that does not end is not among them: what follows would take its device away.
_SHARING = (StartMps, SetComputeMode, SetTimeSlice)
_DESTRUCTIONS = (DestroyGpuInstance, DestroyComputeInstance)
_REREAD_PAUSES = (0.05, 0.2)  # seconds between readings that fail


class StepDriver(Protocol):
    """What is needed of the driver."""

    async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu: ...

    async def observe_changes(
        self,
        uuid: str,
        made: Mapping[Placement, int] = MappingProxyType({}),
        gone: Collection[int] = (),
        *,
        users: bool = False,
    ) -> Gpu: ...

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None: ...

    async def apply(self, step: Step) -> None: ...


class NodeDriver(StepDriver, Protocol):
    """What is needed of the driver of all GPUs."""

    async def observe(self, *, details: bool = True) -> ObservedNode: ...


OnProgress = Callable[[StepReport], None]


class Execution(Struct, frozen=True):
    """What the runs of all GPUs have in common."""

    driver: StepDriver
    policy: Policy
    on_progress: OnProgress
    stop: asyncio.Event
    on_begin: Callable[[Step], None] = lambda _: None

    def plan_for(self, desired: DesiredGpu, seen: Gpu) -> GpuPlan:
        return plan_gpu(desired, seen, self.policy)


class StepRun:
    """A list of steps of one GPU, and how it went.

    `failure`: why it ended early; `stopped`: it was left because of a stop; `pending`: it cannot go
    on before the GPU is reset. `soft_failures` are failures that did not end it. `reset_failed`:
    the MIG mode is left pending. `plan` is replaced when a mode change had another result than
    planned.
    """

    def __init__(self, plan: GpuPlan, terms: Execution) -> None:
        self.plan = plan
        self.soft_failures: list[Problem] = []
        self.failure: Problem | None = None
        self.pending: Problem | None = None
        self.stopped = False
        self.reset_failed = False
        self._terms = terms
        self._goal = plan.goal or layout_of(plan.after)
        self._made = MadeDevices(plan.before)
        self._reports: dict[int, StepReport] = {}
        self._starting: list[asyncio.Task[None]] = []
        self._mode_reached = False  # without a reset

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """The reports in the order of the steps, which is not always that of their ends."""
        return tuple(report for _, report in sorted(self._reports.items()))

    async def run(self) -> None:
        number = 0
        async with asyncio.TaskGroup() as starts:  # of daemons, each to its end
            while number < len(self.plan.steps):
                rest = self.plan.steps[number:]
                step = rest[0]
                if self._starting and not isinstance(step, StartMps | SetComputeMode):
                    await asyncio.wait(self._starting)
                if self.failure or self.pending:
                    self._skip(number, rest, "not started: an earlier step failed")
                    break
                if self._terms.stop.is_set():
                    self.stopped = True
                    self._skip(number, rest, "not started: a stop was requested")
                    break
                if isinstance(step, StartMps | SetComputeMode):
                    await self._share(number, step, starts)
                elif isinstance(step, ResetGpu) and self._mode_reached:
                    self._skip(number, [step], "not needed: the MIG mode changed at once")
                else:
                    await self._take(number, step, _first_of(self.plan.steps, step))
                number += 1
                if self.failure is None and isinstance(step, SetMigMode):
                    await self._check_mode(step, number)

    async def _share(
        self, number: int, step: StartMps | SetComputeMode, starts: asyncio.TaskGroup
    ) -> None:
        """Have a device shared; its daemon is started, but not waited for."""
        if not step.device:  # it was made since
            if self._made.seen is None:
                seen = await self.observe()
                self._made.seen = seen if seen.answers else None
            step = self._made.named(step)
        if isinstance(step, SetComputeMode):
            await self._take(number, step)
        elif self._made.provide(step):
            self._starting.append(starts.create_task(self._take(number, step)))
        else:
            self._skip(number, [step], "not started: the compute mode that it needs is not set")

    async def _take(self, number: int, step: Step, first_of: Sequence[Destruction] = ()) -> None:
        """Apply one step to its end, even when cancelled meanwhile, and report it.

        `first_of`: the steps that destroy something, if this is their first. All they destroy must
        be idle: a user of the last must not cost the others their devices.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        self._terms.on_begin(step)
        running = asyncio.ensure_future(self._apply(step, first_of))
        cancelled = await end_of(running)
        error = running.exception()
        result = StepResult.FAILED if error else StepResult.DONE
        message = error_sentence(error) if error else ""
        self._report(number, StepReport(step, result, clock() - began, message))
        if cancelled:
            raise asyncio.CancelledError
        if error is None:
            self._made.record(step)
            return
        again = isinstance(error, GpuInUse) or isinstance(step, ResetGpu)
        seen = await self.observe() if again else self.plan.before
        problem = step_failed(step, error, seen)
        if isinstance(step, ResetGpu):
            self.reset_failed = True
            if seen.no_reset:  # what the next plan says, too
                problem = next(iter(self._terms.plan_for(self._goal, seen).problems), problem)
        if isinstance(step, _SHARING) and not isinstance(error, GpuLost):
            self.soft_failures.append(problem)
            self._made.record_failure(step)
        else:
            self.failure = problem

    async def _apply(self, step: Step, first_of: Sequence[Destruction]) -> None:
        if first_of:
            await self._terms.driver.insist_on_idle(first_of)
        await self._terms.driver.apply(step)

    def _skip(self, number: int, steps: Sequence[Step], why: str) -> None:
        for skipped, step in enumerate(steps, start=number):
            self._report(skipped, StepReport(step, StepResult.SKIPPED, message=why))

    def _report(self, number: int, report: StepReport) -> None:
        self._reports[number] = report
        self._terms.on_progress(report)

    async def _check_mode(self, step: SetMigMode, number: int) -> None:
        """Read the result of a mode change, before the step `number` begins.

        On any card a driver may change the mode at once or only at a reset. If the result is not
        as expected, the remaining steps are planned again.
        """
        seen = await self.observe()
        if not seen.answers:
            self.failure = inaccessible(seen, self._goal)
            return
        plan, rest = self.plan, self.plan.steps[number:]
        resets = any(isinstance(later, ResetGpu) for later in rest)
        self._mode_reached = seen.mig is not None and seen.mig.current == step.enabled
        if (self._mode_reached and rest) or resets:
            return
        if not self._mode_reached:
            seen = replace(seen, mode_change_needs_reset=True)
        again = self._terms.plan_for(self._goal, seen)
        if any(isinstance(s, SetMigMode) and s.enabled == step.enabled for s in again.steps):
            # The same change once more would come to the same, without end.
            self.failure = not_as_planned(seen, seen, again.steps)
        elif again.verdict in (Verdict.APPLICABLE, Verdict.IN_SYNC):
            steps = (*plan.steps[:number], *again.steps)
            self.plan = replace(plan, steps=steps, after=again.after, problems=again.problems)
        else:
            self.pending = again.problems[0]

    async def observe(self) -> Gpu:
        """Read back, with retries for transient errors."""
        seen = await self._observe_once()
        for pause in _REREAD_PAUSES:
            if seen.access is not Access.UNKNOWN:
                break
            await asyncio.sleep(pause)
            seen = await self._observe_once()
        return seen

    async def _observe_once(self) -> Gpu:
        before, driver = self.plan.before, self._terms.driver
        try:
            if not self.failure and all(map(_is_read_by_changes, self.plan.steps)):
                made, gone = _made_and_gone(self.plan.steps)
                return await driver.observe_changes(before.uuid, made, gone)
            needs_modes = any(isinstance(step, _SHARING) for step in self.plan.steps)
            return await driver.observe_gpu(before.uuid, details=needs_modes)
        except DriverError as error:
            return replace(
                before,
                access=Access.UNKNOWN,
                access_reason=error.message,
                access_remedy=error.remedy,
            )


def only_adds(steps: Sequence[Step]) -> bool:
    """Return whether the steps only make GPU instances, each with one compute instance."""
    made, gone = _made_and_gone(steps)
    return bool(made) and not gone and all(map(_is_of_layout, steps))


def only_removes(steps: Sequence[Step]) -> bool:
    """Return whether the steps destroy GPU instances with all in them, and nothing else."""
    return bool(steps) and all(isinstance(step, DestroyGpuInstance) for step in steps)


def _is_of_layout(step: Step) -> bool:
    match step:
        case CreateGpuInstance(compute=(_,)) | DestroyGpuInstance():
            return True
        case _:
            return False


def _is_read_by_changes(step: Step) -> bool:
    """Return whether it changes only instances, or the daemon alone of a device that was there."""
    return _is_of_layout(step) or (isinstance(step, StartMps) and bool(step.device))


def _made_and_gone(steps: Sequence[Step]) -> tuple[dict[Placement, int], list[int]]:
    """Return where GPU instances are made, by the id of the profile, and the ids of those that are
    destroyed.
    """
    return (
        {step.placement: step.profile_id for step in steps if isinstance(step, CreateGpuInstance)},
        [step.instance for step in steps if isinstance(step, DestroyGpuInstance)],
    )


def _first_of(steps: Sequence[Step], step: Step) -> Sequence[Destruction]:
    """All destructive steps if `step` is the first of them, else none."""
    going = [one for one in steps if isinstance(one, _DESTRUCTIONS)]
    return going if going and going[0] is step else ()


class MadeDevices:
    """The devices made since `before`, in the course of one GPU's steps; the planner knows only
    their places.

    A device that was there before is never taken for a new one, so that none gets a daemon or a
    compute mode meant for another. One that is made where one was destroyed may have its UUID, and
    is new all the same. `seen` is the GPU as it was read back once all were made; None before.
    """

    def __init__(self, before: Gpu) -> None:
        self.seen: Gpu | None = None
        self._before = {device.uuid for device in before.devices()}
        self._provided: set[str] = set()  # those which have had their daemon, or cannot
        self._unfit: set[str] = set()  # whose compute mode could not be set

    def named(self, step: StartMps | SetComputeMode) -> StartMps | SetComputeMode:
        """The step with its device's UUID, or as it is when there is none."""
        for device in self.seen.devices() if self.seen else ():
            kind = (device.placement, device.profile) == (step.placement, step.profile)
            if kind and device.uuid not in self._before | self._provided:
                return replace(step, device=device.uuid)
        return step

    def provide(self, step: StartMps) -> bool:
        """The step's device is none for another daemon; whether it is fit for this one."""
        self._provided.add(step.device)
        return step.device not in self._unfit

    def record(self, step: Step) -> None:
        """A step was done."""
        if isinstance(step, DestroyGpuInstance):
            self._before.difference_update(step.devices)
        elif isinstance(step, DestroyComputeInstance):
            self._before.discard(step.device)

    def record_failure(self, step: Step) -> None:
        """A step failed that the others go on without."""
        if isinstance(step, SetComputeMode):
            self._unfit.add(step.device)
