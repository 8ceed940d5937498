"""Carries out a plan: GPUs side by side, the steps of one GPU in order.

What holds here, whatever happens: the first step that fails ends that GPU's steps, and its earlier
layout becomes the goal, reached by the same planner and therefore without touching anything in
use. Only what shares a finished device (a daemon, a compute mode, a time slice) may fail alone:
the layout is right then, and the other devices go on. The daemons of one GPU are started side by
side, so that a slow one delays no other. A step that has begun is always
finished, also when the caller is cancelled, because a driver call cannot be taken back half-way.
Nothing is called done that was not read back. No GPU's failure, hang or loss reaches another GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nodeagent.errors import DriverError, GpuInUse, GpuLost
from nodeagent.execute.made_devices import MadeDevices
from nodeagent.execute.step_problems import (
    not_as_planned,
    not_restored,
    reset_required,
    sentence,
    step_failed,
    undone_if_gone,
    unreachable,
)
from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    Policy,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.planner import layout_of
from nodeagent.plan.planner import plan as plan_node
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import (
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

_DEFAULT_POLICY = Policy()

# A daemon that does not end is not among them: what follows would take its device away.
_SHARING = (StartMps, SetComputeMode, SetTimeSlice)
_DESTRUCTIONS = (DestroyGpuInstance, DestroyComputeInstance)
_READ_AGAIN = (0.05, 0.2)  # seconds between readings that fail


class StepDriver(Protocol):
    """What is needed of `nodeagent.gpu.driver.Driver`."""

    async def observe_gpu(self, uuid: str) -> Gpu: ...

    async def read_back(self, uuid: str) -> Gpu: ...

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None: ...

    async def apply(self, step: Step) -> None: ...


OnProgress = Callable[[StepReport], None]


async def execute(
    plan: NodePlan,
    driver: StepDriver,
    *,
    parallel: int,
    policy: Policy = _DEFAULT_POLICY,
    on_progress: OnProgress = lambda _: None,
    stop: asyncio.Event | None = None,
) -> NodeOutcome:
    """Take the steps of `plan`, of at most `parallel` GPUs at once, and read back what came of it.

    `on_progress` receives every step as it ends, those that restore included. Once `stop` is set
    no further step is begun: the running ones finish, the rest is reported as skipped, and nothing
    is restored, because the next plan goes on from what is there. Cancellation does the same,
    except that only `on_progress` receives what was done. Never raises for a step's failure: that
    is in the outcome.
    """
    slots = asyncio.Semaphore(max(1, parallel))
    stop = stop or asyncio.Event()

    async def one(gpu_plan: GpuPlan) -> GpuOutcome:
        if not gpu_plan.steps:
            return GpuOutcome(gpu_plan, (), gpu_plan.before)
        async with slots:
            return await _GpuRun(gpu_plan, driver, policy, on_progress, stop).execute()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(p), name=f"steps of {p.before.uuid}") for p in plan.gpus]
    outcomes = tuple(task.result() for task in tasks)
    return NodeOutcome(replace(plan, gpus=tuple(gpu.plan for gpu in outcomes)), outcomes)


@dataclass(slots=True)
class _Progress:
    """How a list of steps went.

    `failure`: why it ended early; `left`: it was left because of a stop; `pending`: it cannot go
    on before the GPU is reset. `alone` are failures that did not end it. `made` has the MIG
    devices that its steps made. `plan` is replaced when a mode change had another result than
    planned; `mode_reached`: it needed no reset.
    """

    plan: GpuPlan
    made: MadeDevices
    numbered: dict[int, StepReport] = field(default_factory=dict)
    starting: list[asyncio.Task[None]] = field(default_factory=list)
    alone: list[Problem] = field(default_factory=list)
    failure: Problem | None = None
    pending: Problem | None = None
    left: bool = False
    mode_reached: bool = False

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """In the order of the steps, which is not always that of their ends."""
        return tuple(report for _, report in sorted(self.numbered.items()))


@dataclass(frozen=True, slots=True)
class _GpuRun:
    """One GPU's way from `before` to `after`, or back."""

    plan: GpuPlan
    driver: StepDriver
    policy: Policy
    on_progress: OnProgress
    stop: asyncio.Event

    async def execute(self) -> GpuOutcome:
        """Take the steps; go back if one fails; read back the end."""
        progress = await self._take_all(self.plan)
        if progress.failure:
            return await self._turn_back(progress, progress.failure)
        seen = await self._observe()
        found: list[Problem] = []
        if progress.pending:
            found.append(progress.pending)
        elif not progress.left:
            found += progress.alone or self._check_end(progress.plan, seen)
        return GpuOutcome(
            progress.plan, progress.reports, seen, _new(progress.plan.problems, found)
        )

    # --- steps ------------------------------------------------------------------------------

    async def _take_all(self, plan: GpuPlan) -> _Progress:
        progress = _Progress(plan, MadeDevices(plan.before))
        number = 0
        async with asyncio.TaskGroup() as starts:  # of daemons, each to its end
            while number < len(progress.plan.steps):
                rest = progress.plan.steps[number:]
                step = rest[0]
                if progress.starting and not isinstance(step, StartMps | SetComputeMode):
                    await asyncio.wait(progress.starting)
                if progress.failure or progress.pending:
                    why = "not begun: an earlier step did not succeed"
                    self._skip(progress, number, rest, why)
                    break
                if self.stop.is_set():
                    progress.left = True
                    self._skip(progress, number, rest, "left: a stop was requested")
                    break
                if isinstance(step, StartMps | SetComputeMode):
                    await self._share(progress, number, step, starts)
                elif isinstance(step, ResetGpu) and progress.mode_reached:
                    self._skip(progress, number, [step], "not needed: the MIG mode changed at once")
                else:
                    await self._take(progress, number, step, _first_of(progress.plan.steps, step))
                number += 1
                if progress.failure is None and isinstance(step, SetMigMode):
                    await self._look_at_mode(progress, step, number)
        return progress

    async def _share(
        self,
        progress: _Progress,
        number: int,
        step: StartMps | SetComputeMode,
        starts: asyncio.TaskGroup,
    ) -> None:
        """Have a device shared; its daemon is started, but not waited for."""
        if not step.device:
            step = await self._of_made_device(progress, step)
        if isinstance(step, SetComputeMode):
            await self._take(progress, number, step)
        elif progress.made.is_unfit(step):
            why = "not begun: the compute mode that it needs is not set"
            self._skip(progress, number, [step], why)
        else:
            progress.made.provide(step)
            start = starts.create_task(self._take(progress, number, step))
            progress.starting.append(start)

    async def _take(
        self, progress: _Progress, number: int, step: Step, first_of: Sequence[Destruction] = ()
    ) -> None:
        """Apply one step to its end, even when cancelled meanwhile, and report it.

        `first_of`: the steps that destroy something, if this is their first. All they destroy must
        be idle: a user of the last must not cost the others their devices.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        running = asyncio.ensure_future(self._apply(step, first_of))
        cancelled = await _ended(running)
        error = running.exception()
        self._note(
            progress,
            number,
            StepReport(
                step,
                StepResult.FAILED if error else StepResult.DONE,
                clock() - began,
                sentence(error) if error else "",
            ),
        )
        if cancelled:
            raise asyncio.CancelledError
        if error is None:
            progress.made.note(step)
        elif isinstance(step, _SHARING) and not isinstance(error, GpuLost):
            progress.alone.append(await self._why(step, error))
            progress.made.note_failure(step)
        else:
            progress.failure = await self._why(step, error)

    async def _apply(self, step: Step, first_of: Sequence[Destruction]) -> None:
        if first_of:
            await self.driver.insist_on_idle(first_of)
        await self.driver.apply(step)

    async def _of_made_device(
        self, progress: _Progress, step: StartMps | SetComputeMode
    ) -> StartMps | SetComputeMode:
        """The step with the UUID of the device that it is for, which was made since."""
        if progress.made.seen is None:
            seen = await self._observe()
            progress.made.seen = seen if seen.access is Access.OK else None
        return progress.made.named(step)

    def _skip(self, progress: _Progress, number: int, steps: Sequence[Step], why: str) -> None:
        for skipped, step in enumerate(steps, start=number):
            self._note(progress, skipped, StepReport(step, StepResult.SKIPPED, message=why))

    def _note(self, progress: _Progress, number: int, report: StepReport) -> None:
        progress.numbered[number] = report
        self.on_progress(report)

    async def _look_at_mode(self, progress: _Progress, step: SetMigMode, number: int) -> None:
        """Read the result of a mode change, before the step `number` begins.

        On any card a driver may change the mode at once or only at a reset. If the result is not
        as expected, the remaining steps are planned again.
        """
        seen = await self._observe()
        if seen.access is not Access.OK:
            progress.failure = unreachable(seen)
            return
        plan, rest = progress.plan, progress.plan.steps[number:]
        resets = any(isinstance(later, ResetGpu) for later in rest)
        progress.mode_reached = seen.mig is not None and seen.mig.current == step.enabled
        if (progress.mode_reached and rest) or resets:
            return
        if not progress.mode_reached:
            seen = replace(seen, mode_change_needs_reset=True)
        again = self._plan_for(plan.goal or layout_of(plan.after), seen)
        if any(isinstance(s, SetMigMode) and s.enabled == step.enabled for s in again.steps):
            # The same change once more would come to the same, without end.
            progress.failure = not_as_planned(seen, seen, again.steps)
        elif again.verdict in (Verdict.APPLICABLE, Verdict.IN_SYNC):
            steps = (*plan.steps[:number], *again.steps)
            progress.plan = replace(plan, steps=steps, after=again.after, problems=again.problems)
        else:
            required = reset_required(seen, enabled=step.enabled)
            progress.pending = next(iter(again.problems), required)

    async def _observe(self) -> Gpu:
        """Read back, with retries for transient errors."""
        seen = await self._observe_once()
        for pause in _READ_AGAIN:
            if seen.access is not Access.UNKNOWN:
                break
            await asyncio.sleep(pause)
            seen = await self._observe_once()
        return seen

    async def _observe_once(self) -> Gpu:
        uuid = self.plan.before.uuid
        try:
            if any(isinstance(step, _SHARING) for step in self.plan.steps):
                return await self.driver.observe_gpu(uuid)  # with the compute modes
            return await self.driver.read_back(uuid)
        except DriverError as error:
            access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
            return replace(self.plan.before, access=access, access_reason=str(error))

    # --- what came of it --------------------------------------------------------------------

    def _check_end(self, plan: GpuPlan, seen: Gpu) -> list[Problem]:
        """Plan once more, to see whether the GPU is what it was to become."""
        if seen.access is not Access.OK:
            return [unreachable(seen)]
        rest = self._plan_for(layout_of(plan.after), seen)
        if rest.verdict is Verdict.IN_SYNC:
            return []
        return [not_as_planned(seen, plan.after, rest.steps)]

    async def _why(self, step: Step, error: BaseException) -> Problem:
        seen = await self._observe() if isinstance(error, GpuInUse) else self.plan.before
        return step_failed(step, error, seen)

    async def _turn_back(self, progress: _Progress, failure: Problem) -> GpuOutcome:
        """Make the earlier layout the goal, and say what is so in the end."""
        earlier = layout_of(self.plan.before)
        seen = await self._observe()
        back = self._plan_for(earlier, seen) if seen.access is Access.OK else GpuPlan.in_sync(seen)
        restoring = _Progress(back, MadeDevices(seen))
        if back.steps and not self.stop.is_set():
            steps = tuple(replace(s, reason="restores the earlier layout") for s in back.steps)
            restoring = await self._take_all(replace(back, steps=steps))
            seen = await self._observe()
        found = [*progress.alone, failure, *restoring.alone]
        if not self._is_back(earlier, seen):
            found.append(
                not_restored(self.plan.before, seen, restoring.failure or restoring.pending)
            )
        reports = tuple(
            undone_if_gone(report, self.plan.before, seen) for report in progress.reports
        )
        return GpuOutcome(
            self.plan,
            reports,
            seen,
            _new(self.plan.problems, found),
            restoring.reports,
            turned_back=True,
        )

    def _is_back(self, earlier: DesiredGpu, seen: Gpu) -> bool:
        if seen.access is not Access.OK:
            return False
        rest = self._plan_for(earlier, seen)
        # A mode that was pending before and still is may be planned away, but nothing was lost.
        kept = seen.mig == self.plan.before.mig
        return rest.verdict is Verdict.IN_SYNC or (
            kept and bool(rest.steps) and all(isinstance(s, SetMigMode) for s in rest.steps)
        )

    def _plan_for(self, desired: DesiredGpu, seen: Gpu) -> GpuPlan:
        node = plan_node(DesiredNode({seen.uuid: desired}), ObservedNode((seen,)), self.policy)
        return node.gpus[0]


def _first_of(steps: Sequence[Step], step: Step) -> Sequence[Destruction]:
    """All destructive steps if `step` is the first of them, else none."""
    going = [one for one in steps if isinstance(one, _DESTRUCTIONS)]
    return going if going and going[0] is step else ()


async def _ended(running: asyncio.Future[None]) -> bool:
    """Wait for the end of `running` whatever happens; True if cancelled meanwhile."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _new(known: Sequence[Problem], found: Sequence[Problem]) -> tuple[Problem, ...]:
    """What the plan did not say beforehand."""
    said = {(problem.code, problem.gpu) for problem in known}
    return tuple(p for p in found if (p.code, p.gpu) not in said)
