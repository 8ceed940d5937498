"""Changes of single GPUs at once, beside the loop's rounds: what a claim of a pod needs.

The same planner and executor make them. One writer at a time works on each GPU: a change waits for
the steps of its own GPU alone, and the loop leaves a GPU that was changed since it looked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from nodeagent.errors import Transient
from nodeagent.execute.executor import execute
from nodeagent.execute.step_run import StepDriver, only_adds, only_removes
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuOutcome, GpuPlan, NodePlan, Policy, StepReport, StepResult
from nodeagent.plan.planner import plan_gpu
from nodeagent.structs import replace

TOGETHER: Final = 0.25  # seconds in which changes are reported as one

Goal = Callable[[Gpu], Awaitable[DesiredGpu]]
"""What a GPU should become, given what it is; it may write ahead what is going to be done."""


class GpuChanges:
    """Usable between `open` and `close`, which the loop calls with its driver.

    `changed` is called soon after changes of the hardware, so that the loop looks again: once for
    many, since a look at the node has calls to every GPU, and other claims wait for those.
    `on_progress` gets each step, `on_end` what came of the steps of one change.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        changed: Callable[[], None],
        on_progress: Callable[[StepReport], None] = lambda _: None,
        on_end: Callable[[GpuOutcome], None] = lambda _: None,
    ) -> None:
        self._policy = policy
        self._changed = changed
        self._on_progress = on_progress
        self._on_end = on_end
        self._driver: StepDriver | None = None
        self._stop = asyncio.Event()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counts: Counter[str] = Counter()
        self._report: asyncio.TimerHandle | None = None

    def open(self, driver: StepDriver) -> None:
        self._driver = driver
        self._stop = asyncio.Event()

    async def close(self) -> None:
        """Begin no further step, and wait for the running ones."""
        self._driver = None
        self._stop.set()
        for turn in tuple(self._turns.values()):
            async with turn:
                pass

    async def change(
        self, uuid: str, goal: Goal, *, adds: bool = False, removes: bool = False
    ) -> GpuOutcome:
        """Observe one GPU, plan what `goal` makes of it, carry that out and read it back.

        `adds` or `removes`: as a rule it only makes or only destroys instances. Then less is read,
        and `goal` may be called twice: once more when it turns out to do something else, for which
        all counts.

        A refusal is in the outcome's plan, a failed step in its problems. Raises Transient
        when the driver is not open or does not know the GPU, when it is closed before all steps are
        taken, and what `goal` raises. Steps that have begun are finished when the caller is
        cancelled.
        """
        async with self._turns[uuid]:
            if (driver := self._driver) is None:
                remedy = "nodeagent status shows what is wrong with the driver; the agent retries"
                raise Transient("the driver is not open", remedy=remedy)
            try:
                gpu, plan = await self._planned(driver, uuid, goal, adds=adds, removes=removes)
                if not plan.steps:
                    return GpuOutcome(plan, (), gpu, plan.problems)
                return await self._execute(driver, gpu, plan)
            finally:
                # At the end, so that it is another number than any observation of before or during
                # the steps began with; also without steps, for what `goal` has written ahead.
                self._counts[uuid] += 1

    async def _planned(
        self, driver: StepDriver, uuid: str, goal: Goal, *, adds: bool, removes: bool
    ) -> tuple[Gpu, GpuPlan]:
        if adds or removes:
            is_expected = only_adds if adds else only_removes
            gpu = await driver.observe_changes(uuid, users=removes)
            plan = plan_gpu(await goal(gpu), gpu, self._policy)
            if is_expected(plan.steps):
                return gpu, plan
        gpu = await driver.observe_gpu(uuid)
        return gpu, plan_gpu(await goal(gpu), gpu, self._policy)

    async def _execute(self, driver: StepDriver, gpu: Gpu, plan: GpuPlan) -> GpuOutcome:
        if plan.goal:  # of a claim, where the planner speaks of a plan
            why = f"for {plan.goal.path}"
            plan = replace(plan, steps=tuple(replace(s, reason=why) for s in plan.steps))
        stop = self._stop
        try:
            outcome = await execute(
                NodePlan(plan.verdict, (plan,)),
                driver,
                parallel=1,
                policy=self._policy,
                on_progress=self._on_progress,
                stop=stop,
            )
        finally:
            if self._report is None:
                self._report = asyncio.get_running_loop().call_later(TOGETHER, self._report_now)
        [changed] = outcome.gpus
        self._on_end(changed)
        if stop.is_set() and any(r.result is StepResult.SKIPPED for r in changed.steps):
            raise Transient(
                f"the change of {gpu.title} is not finished: the driver was closed meanwhile",
                remedy="the next call goes on from there",
            )
        return changed

    def _report_now(self) -> None:
        self._report = None
        self._changed()

    def counts(self) -> Counter[str]:
        """How many changes of each GPU are over, those that found nothing too; for `turn`."""
        return self._counts.copy()

    @asynccontextmanager
    async def turn(self, uuid: str, seen: Counter[str]) -> AsyncIterator[bool]:
        """Keep changes of the GPU out; whether there was none since `seen` was `counts()`."""
        async with self._turns[uuid]:
            yield self._counts[uuid] == seen[uuid]
