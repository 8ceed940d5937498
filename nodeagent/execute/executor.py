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
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
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
from nodeagent.gpu.workers import ended
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
from nodeagent.structs import replace

_DEFAULT_POLICY = Policy()

# A daemon that does not end is not among them: what follows would take its device away.
_SHARING = (StartMps, SetComputeMode, SetTimeSlice)
_DESTRUCTIONS = (DestroyGpuInstance, DestroyComputeInstance)
_READ_AGAIN = (0.05, 0.2)  # seconds between readings that fail


class StepDriver(Protocol):
    """What is needed of the driver."""

    async def observe_gpu(self, uuid: str) -> Gpu: ...

    async def read_back(self, uuid: str) -> Gpu: ...

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None: ...

    async def apply(self, step: Step) -> None: ...


OnProgress = Callable[[StepReport], None]
Turn = Callable[[str], AbstractAsyncContextManager[bool]]
"""Keeps other writers from a GPU; whether it is still as it was observed."""


async def execute(
    plan: NodePlan,
    driver: StepDriver,
    *,
    parallel: int,
    policy: Policy = _DEFAULT_POLICY,
    on_progress: OnProgress = lambda _: None,
    stop: asyncio.Event | None = None,
    turn: Turn = lambda _: nullcontext(True),
) -> NodeOutcome:
    """Take the steps of `plan`, of at most `parallel` GPUs at once, and read back what came of it.

    `on_progress` receives every step as it ends, those that restore included. Once `stop` is set
    no further step is begun: the running ones finish, the rest is reported as skipped, and nothing
    is restored, because the next plan goes on from what is there. Cancellation does the same,
    except that only `on_progress` receives what was done. `turn` is held during the steps of one
    GPU, which is left where it changed meanwhile. Never raises for a step's failure: that is in the
    outcome.
    """
    slots = asyncio.Semaphore(max(1, parallel))
    terms = _Terms(driver, policy, on_progress, stop or asyncio.Event())

    async def one(gpu_plan: GpuPlan) -> GpuOutcome:
        if not gpu_plan.steps:
            return GpuOutcome(gpu_plan, (), gpu_plan.before)
        async with slots, turn(gpu_plan.before.uuid) as unchanged:
            if unchanged:
                return await _execute_gpu(gpu_plan, terms)
            return GpuOutcome(gpu_plan, (), gpu_plan.before, left=True)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(p), name=f"steps of {p.before.uuid}") for p in plan.gpus]
    outcomes = tuple(task.result() for task in tasks)
    return NodeOutcome(replace(plan, gpus=tuple(gpu.plan for gpu in outcomes)), outcomes)


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the runs of all GPUs have in common."""

    driver: StepDriver
    policy: Policy
    on_progress: OnProgress
    stop: asyncio.Event

    def plan_for(self, desired: DesiredGpu, seen: Gpu) -> GpuPlan:
        node = plan_node(DesiredNode({seen.uuid: desired}), ObservedNode((seen,)), self.policy)
        return node.gpus[0]


async def _execute_gpu(plan: GpuPlan, terms: _Terms) -> GpuOutcome:
    """Take the steps; go back if one fails; read back the end."""
    run = _StepRun(plan, terms)
    await run.take_all()
    if run.failure:
        return await _turn_back(plan, run, run.failure, terms)
    seen = await run.observe()
    found = [run.pending] if run.pending else []
    if not (run.pending or run.left):
        found += run.alone or _check_end(run.plan, seen, terms)
    return GpuOutcome(run.plan, run.reports, seen, _new(run.plan.problems, found))


def _check_end(plan: GpuPlan, seen: Gpu, terms: _Terms) -> list[Problem]:
    """Plan once more, to see whether the GPU is what it was to become."""
    if seen.access is not Access.OK:
        return [unreachable(seen)]
    rest = terms.plan_for(layout_of(plan.after, plan.goal), seen)
    if rest.verdict is Verdict.IN_SYNC:
        return []
    return [not_as_planned(seen, plan.after, rest.steps)]


async def _turn_back(plan: GpuPlan, run: _StepRun, failure: Problem, terms: _Terms) -> GpuOutcome:
    """Make the earlier layout the goal, and say what is so in the end."""
    before, earlier = plan.before, layout_of(plan.before, plan.goal)
    seen = await run.observe()
    back = terms.plan_for(earlier, seen) if seen.access is Access.OK else GpuPlan.in_sync(seen)
    steps = tuple(replace(step, reason="restores the earlier layout") for step in back.steps)
    restoring = _StepRun(replace(back, steps=steps), terms)
    if steps and not terms.stop.is_set():
        await restoring.take_all()
        seen = await run.observe()
    found = [*run.alone, failure, *restoring.alone]
    if not _is_back(before, earlier, seen, terms):
        found.append(not_restored(before, seen, restoring.failure or restoring.pending))
    return GpuOutcome(
        plan,
        tuple(undone_if_gone(report, before, seen) for report in run.reports),
        seen,
        _new(plan.problems, found),
        restoring.reports,
        turned_back=True,
    )


def _is_back(before: Gpu, earlier: DesiredGpu, seen: Gpu, terms: _Terms) -> bool:
    if seen.access is not Access.OK:
        return False
    rest = terms.plan_for(earlier, seen)
    # A mode that was pending before and still is may be planned away, but nothing was lost.
    return rest.verdict is Verdict.IN_SYNC or (
        seen.mig == before.mig
        and bool(rest.steps)
        and all(isinstance(step, SetMigMode) for step in rest.steps)
    )


class _StepRun:
    """One list of steps of one GPU, and how it went.

    `failure`: why it ended early; `left`: it was left because of a stop; `pending`: it cannot go
    on before the GPU is reset. `alone` are failures that did not end it. `plan` is replaced when a
    mode change had another result than planned.
    """

    def __init__(self, plan: GpuPlan, terms: _Terms) -> None:
        self.plan = plan
        self.alone: list[Problem] = []
        self.failure: Problem | None = None
        self.pending: Problem | None = None
        self.left = False
        self._terms = terms
        self._made = MadeDevices(plan.before)
        self._reports: dict[int, StepReport] = {}
        self._starting: list[asyncio.Task[None]] = []
        self._mode_reached = False  # without a reset

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """In the order of the steps, which is not always that of their ends."""
        return tuple(report for _, report in sorted(self._reports.items()))

    async def take_all(self) -> None:
        number = 0
        async with asyncio.TaskGroup() as starts:  # of daemons, each to its end
            while number < len(self.plan.steps):
                rest = self.plan.steps[number:]
                step = rest[0]
                if self._starting and not isinstance(step, StartMps | SetComputeMode):
                    await asyncio.wait(self._starting)
                if self.failure or self.pending:
                    self._skip(number, rest, "not begun: an earlier step did not succeed")
                    break
                if self._terms.stop.is_set():
                    self.left = True
                    self._skip(number, rest, "left: a stop was requested")
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
                self._made.seen = seen if seen.access is Access.OK else None
            step = self._made.named(step)
        if isinstance(step, SetComputeMode):
            await self._take(number, step)
        elif self._made.provide(step):
            self._starting.append(starts.create_task(self._take(number, step)))
        else:
            self._skip(number, [step], "not begun: the compute mode that it needs is not set")

    async def _take(self, number: int, step: Step, first_of: Sequence[Destruction] = ()) -> None:
        """Apply one step to its end, even when cancelled meanwhile, and report it.

        `first_of`: the steps that destroy something, if this is their first. All they destroy must
        be idle: a user of the last must not cost the others their devices.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        running = asyncio.ensure_future(self._apply(step, first_of))
        cancelled = await ended(running)
        error = running.exception()
        result = StepResult.FAILED if error else StepResult.DONE
        message = sentence(error) if error else ""
        self._report(number, StepReport(step, result, clock() - began, message))
        if cancelled:
            raise asyncio.CancelledError
        if error is None:
            self._made.note(step)
            return
        seen = await self.observe() if isinstance(error, GpuInUse) else self.plan.before
        problem = step_failed(step, error, seen)
        if isinstance(step, _SHARING) and not isinstance(error, GpuLost):
            self.alone.append(problem)
            self._made.note_failure(step)
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
        if seen.access is not Access.OK:
            self.failure = unreachable(seen)
            return
        plan, rest = self.plan, self.plan.steps[number:]
        resets = any(isinstance(later, ResetGpu) for later in rest)
        self._mode_reached = seen.mig is not None and seen.mig.current == step.enabled
        if (self._mode_reached and rest) or resets:
            return
        if not self._mode_reached:
            seen = replace(seen, mode_change_needs_reset=True)
        again = self._terms.plan_for(plan.goal or layout_of(plan.after), seen)
        if any(isinstance(s, SetMigMode) and s.enabled == step.enabled for s in again.steps):
            # The same change once more would come to the same, without end.
            self.failure = not_as_planned(seen, seen, again.steps)
        elif again.verdict in (Verdict.APPLICABLE, Verdict.IN_SYNC):
            steps = (*plan.steps[:number], *again.steps)
            self.plan = replace(plan, steps=steps, after=again.after, problems=again.problems)
        else:
            required = reset_required(seen, enabled=step.enabled)
            self.pending = next(iter(again.problems), required)

    async def observe(self) -> Gpu:
        """Read back, with retries for transient errors."""
        seen = await self._observe_once()
        for pause in _READ_AGAIN:
            if seen.access is not Access.UNKNOWN:
                break
            await asyncio.sleep(pause)
            seen = await self._observe_once()
        return seen

    async def _observe_once(self) -> Gpu:
        before, driver = self.plan.before, self._terms.driver
        try:
            if any(isinstance(step, _SHARING) for step in self.plan.steps):
                return await driver.observe_gpu(before.uuid)  # with the compute modes
            return await driver.read_back(before.uuid)
        except DriverError as error:
            access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
            return replace(before, access=access, access_reason=str(error))


def _first_of(steps: Sequence[Step], step: Step) -> Sequence[Destruction]:
    """All destructive steps if `step` is the first of them, else none."""
    going = [one for one in steps if isinstance(one, _DESTRUCTIONS)]
    return going if going and going[0] is step else ()


def _new(known: Sequence[Problem], found: Sequence[Problem]) -> tuple[Problem, ...]:
    """What the plan did not say beforehand."""
    said = {(problem.code, problem.gpu) for problem in known}
    return tuple(p for p in found if (p.code, p.gpu) not in said)
