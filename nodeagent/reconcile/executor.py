"""Carries out a plan: GPUs side by side, the steps of one GPU in order (`step_run`).

What holds here, whatever happens: after the first step that fails, the GPU's earlier layout becomes
the goal, reached by the same planner and therefore without touching anything in use. Nothing is
called done that was not read back. No GPU's failure, hang or loss reaches another GPU.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
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
from nodeagent.plan.planner import inaccessible, layout_of, of_another
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import ResetGpu, SetMigMode, Step
from nodeagent.reconcile.step_problems import not_as_planned, not_restored, undone_if_gone
from nodeagent.reconcile.step_run import Execution, OnProgress, StepDriver, StepRun
from nodeagent.structs import replace

_DEFAULT_POLICY = Policy()


async def execute(
    plan: NodePlan,
    driver: StepDriver,
    *,
    parallel: int | None,
    policy: Policy = _DEFAULT_POLICY,
    on_begin: Callable[[Step], None] = lambda _: None,
    on_progress: OnProgress = lambda _: None,
    stop: asyncio.Event | None = None,
) -> NodeOutcome:
    """Take the steps of `plan` and read back what came of it, of at most `parallel` GPUs at once;
    None: of all.

    `on_begin` receives every step as it begins, `on_progress` as it ends, those that restore
    included. Once `stop` is set no further step is begun: the running ones finish, the rest is
    reported as skipped, and nothing is restored, because the next plan goes on from what is there.
    Cancellation does the same, except that only `on_progress` receives what was done. Never raises
    for a step's failure: that is in the outcome.
    """
    terms = Execution(driver, policy, on_progress, stop or asyncio.Event(), on_begin)
    return await side_by_side(plan, partial(execute_gpu, terms=terms), parallel)


async def side_by_side(
    plan: NodePlan,
    carry_out: Callable[[GpuPlan], Awaitable[GpuOutcome | None]],
    parallel: int | None,
) -> NodeOutcome:
    """Carry the plans of all GPUs out, at most `parallel` at once; where it gives None, the GPU is
    not in the outcome. One that gets a daemon for several comes when the others are ready for it.
    """
    slots = asyncio.Semaphore(parallel or max(1, len(plan.gpus)))
    tasks: dict[str, asyncio.Task[GpuOutcome | None]] = {}

    async def of_gpu(gpu_plan: GpuPlan) -> GpuOutcome | None:
        if not gpu_plan.steps:
            return GpuOutcome(gpu_plan, (), gpu_plan.before)
        if others := [tasks[u] for u in gpu_plan.joined[1:] if u in tasks]:
            await asyncio.wait(others)
            outcomes = (other.result() for other in others)
            if found := [problem for one in outcomes if one for problem in one.problems]:
                return _held_back(gpu_plan, found)
        async with slots:
            return await carry_out(gpu_plan)

    async with asyncio.TaskGroup() as group:
        for one in plan.gpus:
            tasks[one.before.key] = group.create_task(
                of_gpu(one), name=f"steps of {one.before.uuid}"
            )
    outcomes = tuple(outcome for task in tasks.values() if (outcome := task.result()))
    return NodeOutcome(replace(plan, gpus=tuple(gpu.plan for gpu in outcomes)), outcomes)


def _held_back(plan: GpuPlan, found: Sequence[Problem]) -> GpuOutcome:
    """Nothing is taken away for a daemon that cannot come."""
    why = "not started: a step failed on another GPU of the daemon"
    reports = (StepReport(step, StepResult.SKIPPED, message=why) for step in plan.steps)
    return GpuOutcome(plan, tuple(reports), plan.before, of_another(plan, found))


async def execute_gpu(plan: GpuPlan, terms: Execution) -> GpuOutcome:
    """Take the steps of one GPU; after a failure, those back to its earlier layout."""
    run = StepRun(plan, terms)
    await run.run()
    if run.failure:
        return await _turn_back(plan, run, run.failure, terms)
    seen = await run.observe()
    found = [run.pending] if run.pending else []
    if not (run.pending or run.stopped):
        found += run.soft_failures or _check_end(run.plan, seen, terms)
    return GpuOutcome(run.plan, run.reports, seen, _new(run.plan.problems, found))


def _check_end(plan: GpuPlan, seen: Gpu, terms: Execution) -> list[Problem]:
    """Plan once more, to see whether the GPU is what it was to become."""
    if not seen.answers:
        return [inaccessible(seen, plan.goal)]
    rest = terms.plan_for(layout_of(plan.after, plan.goal), seen)
    if rest.verdict is Verdict.IN_SYNC:
        return []
    return [not_as_planned(seen, plan.after, rest.steps)]


async def _turn_back(plan: GpuPlan, run: StepRun, failure: Problem, terms: Execution) -> GpuOutcome:
    """Make the earlier layout the goal, and report how the GPU is in the end."""
    before, earlier = plan.before, layout_of(plan.before, plan.goal)
    seen = await run.observe()
    back = terms.plan_for(earlier, seen)  # no steps where the GPU does not answer
    # What was pending before is left so, and what a reset failed to make current: the next reset or
    # reboot is what it waits for.
    waits = run.reset_failed or seen.mig == before.mig
    steps = tuple(
        replace(step, reason="restores the earlier layout")
        for step in back.steps
        if not (waits and isinstance(step, SetMigMode | ResetGpu))
    )
    restoring = StepRun(replace(back, steps=steps), terms)
    if steps and not terms.stop.is_set():
        await restoring.run()
        seen = await run.observe()
    found = [*run.soft_failures, failure, *restoring.soft_failures]
    if not _is_back(earlier, seen, terms, waits=waits):
        found.append(not_restored(before, seen, restoring.failure or restoring.pending))
    return GpuOutcome(
        plan,
        tuple(undone_if_gone(report, before, seen) for report in run.reports),
        seen,
        _new(plan.problems, found),
        restoring.reports,
        turned_back=not run.reset_failed or bool(steps),
    )


def _is_back(earlier: DesiredGpu, seen: Gpu, terms: Execution, *, waits: bool) -> bool:
    rest = terms.plan_for(earlier, seen)
    # A mode that waits for a reset may be planned away, but nothing was lost.
    return rest.verdict is Verdict.IN_SYNC or (
        waits and bool(rest.steps) and all(isinstance(step, SetMigMode) for step in rest.steps)
    )


def _new(known: Sequence[Problem], found: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems that the plan did not have beforehand."""
    said = {(problem.code, problem.gpu) for problem in known}
    return tuple(p for p in found if (p.code, p.gpu) not in said)
