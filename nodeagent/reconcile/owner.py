"""One owner for each GPU: whatever changes the GPU, changes it through its owner.

What a GPU should be has parts: the plan's, and one for each claim. The owner settles one part after
the other. It takes the GPU's lock, observes, plans the part beside all others, carries that out and
reads it back, so that each part succeeds or fails alone and undoes nothing but its own.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from enum import Enum, auto

from nodeagent.errors import DriverError, Transient
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome, GpuPlan, NodeOutcome, NodePlan, Policy, StepResult
from nodeagent.reconcile.executor import execute_gpu, side_by_side
from nodeagent.reconcile.step_run import Execution, NodeDriver, OnProgress, only_adds, only_removes
from nodeagent.signals import Signal
from nodeagent.structs import Struct, replace


class Expected(Enum):
    """What settling a part comes to as a rule. Of a GPU that is to get or to lose instances, and
    nothing else, less has to be read.
    """

    ANYTHING = auto()
    CREATION = auto()
    REMOVAL = auto()


class Part(Struct, frozen=True):
    """What one source wants of the GPU with the UUID `gpu`.

    `goal` gives that for the GPU as it is, all that is not the source's own left alone; it may
    write ahead what is going to be done. It is called twice where something else than `expected`
    turns out to be done: the second time with the whole GPU, and that counts.
    """

    gpu: str
    goal: Callable[[Gpu], Awaitable[DesiredGpu]]
    expected: Expected = Expected.ANYTHING


class _Owner:
    """The owner of one GPU. `settled` counts its claims' parts, those without a step, too."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.settled = 0


class GpuOwners:
    """The owners of all GPUs of a node, with its driver; usable between `open` and `close`.

    `parallel`: how many GPUs are worked on for the plan at once; None: all. `on_progress` is called
    with each step for a claim; `changes` publishes what came of them, None where they were left
    half-way.
    """

    def __init__(
        self,
        driver: AbstractAsyncContextManager[NodeDriver],
        policy: Policy,
        *,
        parallel: int | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._driver = driver
        self._policy = policy
        self._parallel = parallel
        self._on_progress = on_progress
        self.changes: Signal[GpuOutcome | None] = Signal(None)
        # The node as it was observed last, with what was read of single GPUs since.
        self.observed = ObservedNode()
        self._owners: defaultdict[str, _Owner] = defaultdict(_Owner)
        self._settled: dict[str, int] = {}  # parts settled when the node was observed last
        self._node: NodeDriver | None = None  # the open driver
        self._closing = asyncio.Event()
        self._exits = AsyncExitStack()

    async def open(self) -> None:
        """Open the driver, unless it is open."""
        if self._node is None:
            self._node = await self._exits.enter_async_context(self._driver)
            self._closing = asyncio.Event()

    async def close(self) -> None:
        """Close the driver: begin no further step, and wait for the running ones."""
        self._node = None
        self._closing.set()
        for owner in tuple(self._owners.values()):
            async with owner.lock:
                pass
        exits, self._exits = self._exits, AsyncExitStack()
        await exits.aclose()

    async def observe(self, *, details: bool = True) -> ObservedNode:
        """The whole node, for what is to be planned for all GPUs at once."""
        self._settled = {uuid: owner.settled for uuid, owner in self._owners.items()}
        self.observed = await self._opened().observe(details=details)
        return self.observed

    async def complete(self) -> None:
        """Read the details of new devices that were left out when they were read back. A GPU that
        is being changed, or does not answer, stays as it was read.
        """

        async def read(gpu: Gpu) -> None:
            lock = self._owners[gpu.uuid].lock
            new = any(device.memory is None for one in gpu.instances for device in one.compute)
            if gpu.answers and new and not lock.locked():
                async with lock:
                    with suppress(DriverError):
                        self._keep(await self._opened().observe_gpu(gpu.uuid))

        await asyncio.gather(*map(read, self.observed.gpus))

    def _keep(self, *read: Gpu) -> None:
        newest = {gpu.uuid: gpu for gpu in read}
        gpus = tuple(newest.get(gpu.uuid, gpu) for gpu in self.observed.gpus)
        self.observed = replace(self.observed, gpus=gpus)

    async def settle_plan(
        self, todo: NodePlan, *, stop: asyncio.Event, on_progress: OnProgress
    ) -> NodeOutcome:
        """Settle the plan's part of each GPU of `todo`, which was planned from the last `observe`.

        A GPU that a claim had a part of settled on since is missing in the outcome: its plan is out
        of date.
        """
        terms = Execution(self._opened(), self._policy, on_progress, stop)

        async def settled(plan: GpuPlan) -> GpuOutcome | None:
            uuids = plan.joined or (plan.before.uuid,)
            async with AsyncExitStack() as locks:
                for uuid in sorted(uuids):  # in one order, so that no two wait for each other
                    await locks.enter_async_context(self._owners[uuid].lock)
                if any(self._owners[u].settled != self._settled.get(u, 0) for u in uuids):
                    return None
                return await execute_gpu(plan, terms)

        outcome = await side_by_side(todo, settled, self._parallel)
        self._keep(*(gpu.after for gpu in outcome.gpus))
        for uuid in {uuid for plan in outcome.plan.gpus for uuid in plan.joined}:
            with suppress(DriverError):  # its daemon came after it was read back
                self._keep(await terms.driver.observe_gpu(uuid))
        return outcome

    async def settle(self, part: Part, *, only_plan: bool = False) -> GpuOutcome:
        """Settle the part of a claim, at once: it waits for other parts of its own GPU alone. With
        `only_plan` no step is taken.

        A refusal is in the outcome's plan, a failed step in its problems. Raises Transient when the
        driver is not open or does not know the GPU, when it is closed before all steps are taken,
        and what `goal` raises. Steps that have begun are finished when the caller is cancelled.
        """
        owner = self._owners[part.gpu]
        async with owner.lock:
            try:
                terms = Execution(self._opened(), self._policy, self._on_progress, self._closing)
                return await self._settle(part, terms, only_plan=only_plan)
            finally:
                # At the end, so that no observation of before or during the steps has this number;
                # also without steps, for what `goal` has written ahead.
                owner.settled += 1

    async def _settle(self, part: Part, terms: Execution, *, only_plan: bool) -> GpuOutcome:
        plan = await _planned(part, terms)
        if only_plan or not plan.steps:
            return GpuOutcome(plan, (), plan.before, plan.problems)
        outcome: GpuOutcome | None = None
        try:
            outcome = await execute_gpu(plan, terms)
            self._keep(outcome.after)
        finally:
            self.changes.publish(outcome)
        if terms.stop.is_set() and any(r.result is StepResult.SKIPPED for r in outcome.steps):
            raise Transient.of("driverClosed", gpu=plan.before)
        return outcome

    def _opened(self) -> NodeDriver:
        if self._node is None:
            remedy = "nodeagent status shows what is wrong with the driver; the agent retries"
            raise Transient("the driver is not open", remedy=remedy)
        return self._node


async def _planned(part: Part, terms: Execution) -> GpuPlan:
    """Plan the part for the GPU as it is now."""
    driver = terms.driver
    if part.expected is not Expected.ANYTHING:
        removes = part.expected is Expected.REMOVAL
        gpu = await driver.observe_changes(part.gpu, users=removes)
        plan = terms.plan_for(await part.goal(gpu), gpu)
        if (only_removes if removes else only_adds)(plan.steps):
            return _with_reasons(plan)
    gpu = await driver.observe_gpu(part.gpu)
    return _with_reasons(terms.plan_for(await part.goal(gpu), gpu))


def _with_reasons(plan: GpuPlan) -> GpuPlan:
    """Name the claim as the reason of each step, where the planner speaks of a plan."""
    if plan.goal is None:
        return plan
    why = f"for {plan.goal.path}"
    return replace(plan, steps=tuple(replace(step, reason=why) for step in plan.steps))
