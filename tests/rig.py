"""A reconciler on a simulated node, as tests drive it."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from nodeagent.gpu.driver import Driver
from nodeagent.gpu.users import UsageSource
from nodeagent.pacing import Backoff
from nodeagent.plan.desired import WithClaims
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import NodeOutcome, Policy
from nodeagent.plan.steps import DestroyGpuInstance, Step
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.loop_control import Heartbeats, LoopControl
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.reconcile.plan_update import FILE_NAME, PlanText, last_good_plan
from nodeagent.reconcile.reconciler import Reconciler, Rules
from nodeagent.reconcile.step_run import NodeDriver
from nodeagent.signals import Signal
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.text import layout_words
from tests.machine_load import stretched, until

SOON = 60.0  # seconds that anything in a test may take
CREATE = "nvmlDeviceCreateGpuInstance*"  # the calls that make a GPU instance


def plan_text(mig: str, devices: str = "all") -> bytes:
    return f"version: v1\ngpus:\n- devices: {devices}\n  mig: {mig}\n".encode()


SMI = (sys.executable, "-m", "nodeagent.simulation.nvidia_smi")


def open_driver(observe_deadline: float = 5.0, step_deadline: float = 5.0) -> Driver:
    """The real driver part; deadlines in seconds."""
    return Driver(observe_deadline=observe_deadline, step_deadline=step_deadline, nvidia_smi=SMI)


@asynccontextmanager
async def driving(
    boards: str,
    *,
    sources: Sequence[UsageSource] = (),
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> AsyncIterator[tuple[Driver, SimulatedNode]]:
    """A simulated node, and the driver on top of it."""
    with simulated(boards, **options) as node:
        async with Driver(
            observe_deadline=30, step_deadline=30, nvidia_smi=SMI, sources=sources, clock=clock
        ) as driver:
            yield driver, node


class CountedRounds(LoopControl):
    """Counts the loop's rounds, so that a test can wait for one that began after its own act."""

    begun = 0
    ended = 0
    rested = 0  # after the last of them, that rest began

    @property
    def resting(self) -> bool:
        return self.begun == self.rested and not self._wake.is_set()

    async def rest(self, seconds: float) -> None:
        self.rested = self.begun
        await super().rest(seconds)

    def begin_round(self) -> bool:
        self.begun += 1
        return super().begin_round()

    def end_round(self) -> None:
        self.ended += 1
        super().end_round()


class Rig:
    """A running reconciler, what it said, and its states in their order."""

    def __init__(
        self,
        folder: Path,
        *,
        resync: float = 3600,
        mend: bool = True,
        parallel: int | None = None,
        policy: Policy | None = None,
        retry: float = 3600,
        observe_deadline: float = 5.0,
        step_deadline: float = 5.0,
        driver: AbstractAsyncContextManager[NodeDriver] | None = None,
        hooks: ChangeHooks | None = None,
        with_claims: WithClaims = lambda goal, _: goal,
        on_state: Callable[[NodeState], None] = lambda _: None,
        on_round: Callable[[NodeOutcome | None, float], None] = lambda _outcome, _seconds: None,
    ) -> None:
        self.events = EventLog()
        self.states: list[NodeState] = []
        self.control = CountedRounds()
        self.node_states = Signal(NodeState("node-a", "file"))
        self.plan = ActivePlan(
            self.control, with_claims=with_claims, file=last_good_plan(folder / FILE_NAME)
        )
        self.heartbeats = Heartbeats(asyncio.get_running_loop().time)
        self.owners = GpuOwners(
            driver or open_driver(observe_deadline, step_deadline),
            policy or Policy(),
            parallel=parallel,
        )
        self.owners.changes.subscribe(self.control.follow_up)
        self.reconciler = Reconciler(
            control=self.control,
            states=self.node_states,
            plan=self.plan,
            owners=self.owners,
            rules=Rules(policy or Policy(), resync, patience=60, mend=mend),
            backoff=Backoff(retry, retry),
            reporter=EventReporter(self.events),
            heartbeats=self.heartbeats,
            hooks=hooks or ChangeHooks(),
            on_round=on_round,
        )

        self.node_states.subscribe(self.states.append)
        self.node_states.subscribe(on_state)

    @property
    def state(self) -> NodeState:
        return self.node_states.newest

    @property
    def codes(self) -> set[str]:
        return {problem.code for problem in self.state.problems}

    def offer(self, text: bytes | str) -> None:
        content = text if isinstance(text, bytes) else plan_text(text)
        self.plan.offer(PlanText(content))

    async def reach(self, text: bytes | str, phase: Phase = Phase.IN_SYNC) -> None:
        self.offer(text)
        await self.settle(phase)

    def gpu(self, index: int = 0) -> Gpu:
        return self.state.observed.gpus[index]

    def layout(self, index: int = 0) -> str:
        return layout_words(self.gpu(index))

    def reported(self, *kinds: EventType) -> list[str]:
        """The kinds of events but for steps in order, or only these, as often as they happened."""
        wanted = kinds or [kind for kind in EventType if not kind.startswith("Step")]
        found = (event for event in self.events.events if event.type in wanted)
        return [event.type for event in found for _ in range(event.count)]

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def round(self) -> None:
        """Have it look once more, and wait for the end of a round that began from now on."""
        before = self.control.begun
        self.control.wake("a test asks")
        await self.until(lambda: self.control.ended > before and self.state.phase != Phase.WORKING)

    async def rest(self) -> None:
        await self.until(lambda: self.control.resting)

    async def settle(self, phase: Phase) -> None:
        await self.until(lambda: self.state.rounds > 0 and self.state.phase is phase)
        if phase is Phase.IN_SYNC:  # and was looked at once more
            await self.rest()


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """Run the rig's reconciler, and stop it in the end as a signal would."""
    task = asyncio.create_task(rig.reconciler.run())
    try:
        yield rig
    finally:
        rig.control.stop()
        async with asyncio.timeout(stretched(SOON)):
            await task


@asynccontextmanager
async def on_node(
    rig: Rig, boards: str = "h100-80gb:1"
) -> AsyncIterator[tuple[Rig, SimulatedNode]]:
    """Run the rig on a simulated node of its own."""
    with simulated(boards) as node:
        async with running(rig):
            yield rig, node


async def do(*steps: Step) -> None:
    """Take these steps on the node past the agent, as another program does."""
    async with open_driver() as driver:
        for step in steps:
            await driver.apply(step)


def destruction(gpu: Gpu, position: int = 0) -> DestroyGpuInstance:
    instance = gpu.instances[position]
    devices = tuple(device.uuid for device in instance.compute)
    return DestroyGpuInstance(
        gpu.uuid, instance.id, instance.profile, instance.placement, devices, "a test"
    )
