"""A GPU's owner settles part after part: a claim's at once, the plan's in the loop's rounds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.plan.desired import DesiredGpu, Layout, Reserved, WantedInstance
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.owner import GpuOwners, Part
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from nodeagent.views.node_state import Phase
from tests.claims.machine import laid_out
from tests.machine_load import until
from tests.rig import CREATE, Rig, open_driver, running

CREATE_COMPUTE = "nvmlGpuInstanceCreateComputeInstance*"
PATH = "claim team/mine"
Goal = Callable[[Gpu], Awaitable[DesiredGpu]]
SLICES = {"1g.10gb": 1, "1g.10gb+me": 1, "1g.24gb": 1, "2g.20gb": 2, "3g.40gb": 3}


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two cards that switch MIG at once."""
    with simulated("h100-80gb:2") as node:
        yield node


def made(*own: tuple[str, int], gone: tuple[str, int] | None = None) -> Goal:
    """These instances beside all others that there are but the one that is to be `gone`; the GPU's
    others belong to no goal.
    """

    async def goal(gpu: Gpu) -> DesiredGpu:
        others = tuple(
            Reserved(i.profile, i.placement, "another")
            for i in gpu.instances
            if (i.profile, i.placement.start) not in (*own, gone)
        )
        wanted = tuple(WantedInstance(name, SLICES[name], start, PATH) for name, start in own)
        return DesiredGpu(Layout(wanted, PATH), PATH, reserved=others)

    return goal


def released(name: str, start: int) -> Goal:
    return made(gone=(name, start))


async def without_plan(rig: Rig) -> None:
    rig.plan.offer(NoPlan("no plan"))
    await rig.settle(Phase.NO_PLAN)


async def test_a_gpu_is_changed_without_a_plan(node: SimulatedNode, tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        await without_plan(rig)
        uuid = rig.gpu(1).uuid
        outcome = await rig.owners.settle(Part(uuid, made(("1g.10gb", 6))))
        assert [(i.profile, i.placement.start) for i in outcome.after.instances] == [("1g.10gb", 6)]
        assert outcome.problems == ()
        await rig.until(lambda: rig.layout(1) == "1g.10gb at 6")
        assert rig.layout(0) == "MIG off"
        again = await rig.owners.settle(Part(uuid, made(("1g.10gb", 6))))
        assert (again.plan.verdict, again.steps) == (Verdict.IN_SYNC, ())
        gone = await rig.owners.settle(Part(uuid, released("1g.10gb", 6)))
        assert gone.after.instances == ()
        assert node.card(1).state.mig


async def test_what_is_refused_is_in_the_outcome(node: SimulatedNode, tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        await without_plan(rig)
        uuid = rig.gpu().uuid
        await rig.owners.settle(Part(uuid, made(("2g.20gb", 4))))
        outcome = await rig.owners.settle(Part(uuid, made(("1g.10gb", 5))))
        assert (outcome.plan.verdict, outcome.steps) == (Verdict.BLOCKED, ())
        assert "2g.20gb at slice 4 (another)" in outcome.problems[0].message
        node.occupy(outcome.after.instances[0].compute[0].uuid, pid=4711)
        busy = await rig.owners.settle(Part(uuid, released("2g.20gb", 4)))
        assert busy.plan.verdict is Verdict.BLOCKED
        assert "4711" in busy.problems[0].message


async def test_a_failure_undoes_its_own_part_alone(node: SimulatedNode, tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        await without_plan(rig)
        uuid = rig.gpu().uuid
        await rig.owners.settle(Part(uuid, made(("1g.10gb", 0))))
        node.inject(CREATE_COMPUTE, error="NVML_ERROR_INSUFFICIENT_RESOURCES")
        outcome = await rig.owners.settle(Part(uuid, made(("2g.20gb", 4))))
        assert outcome.failed
        assert outcome.turned_back
        assert [(i.profile, i.placement.start) for i in outcome.after.instances] == [("1g.10gb", 0)]
        retried = await rig.owners.settle(Part(uuid, made(("2g.20gb", 4))))
        assert retried.problems == ()


async def test_a_slow_plan_holds_up_its_own_gpu_alone(node: SimulatedNode, tmp_path: Path) -> None:
    node.inject(CREATE, hang=True, gpu=0)
    async with running(Rig(tmp_path, step_deadline=60)) as rig:
        rig.offer("{1g.10gb: 1}")
        await rig.until(lambda: rig.state.phase is Phase.WORKING)
        await rig.until(lambda: len(node.card(1).state.instances) == 1)
        waiting = asyncio.create_task(
            rig.owners.settle(Part(rig.gpu(0).uuid, made(("2g.20gb", 4))))
        )
        other = await rig.owners.settle(Part(rig.gpu(1).uuid, made(("2g.20gb", 4))))
        assert other.problems == ()
        assert not waiting.done()
        node.clear_faults()
        assert (await waiting).problems == ()


class Meanwhile(ChangeHooks):
    """A claim changes the GPU while the loop prepares its own change of it."""

    def __init__(self, taken: Reserved, goal: Goal) -> None:
        self.rig: Rig | None = None
        self.held: dict[str, tuple[Reserved, ...]] = {}
        self._taken = taken
        self._goal = goal

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        if self.rig and not self.held:
            uuid = todo.gpus[0].before.uuid
            self.held[uuid] = (self._taken,)
            await self.rig.owners.settle(Part(uuid, self._goal))
        return ()


def beside_a_claim(hooks: Meanwhile, folder: Path) -> Rig:
    """A loop with these hooks, that leaves room for what the claim holds."""
    hooks.rig = Rig(
        folder,
        hooks=hooks,
        with_claims=lambda goal, gpu: replace(goal, reserved=hooks.held.get(gpu.uuid, ())),
    )
    return hooks.rig


@pytest.mark.usefixtures("node")
async def test_the_loop_leaves_a_gpu_that_changed_since_it_looked(tmp_path: Path) -> None:
    taken = Reserved("1g.10gb", Placement(6, 1), PATH)
    rig = beside_a_claim(Meanwhile(taken, made(("1g.10gb", 6))), tmp_path)
    async with running(rig):
        await rig.reach("{3g.40gb: 1}")
        assert rig.layout() == "3g.40gb at 0; 1g.10gb at 6"
        assert EventType.FAILED not in rig.reported()
        assert Code.STEP_FAILED not in rig.codes


@pytest.mark.usefixtures("node")
async def test_the_loop_leaves_a_gpu_that_was_given_away_as_it_is(tmp_path: Path) -> None:
    """A claim of a whole GPU outside MIG takes no step, and yet the plan must not divide it."""

    async def as_it_is(_: Gpu) -> DesiredGpu:
        return DesiredGpu(None, PATH)

    rig = beside_a_claim(Meanwhile(Reserved("", None, PATH), as_it_is), tmp_path)
    async with running(rig):
        await rig.reach("{3g.40gb: 1}", Phase.BLOCKED)
        assert [rig.layout(0), rig.layout(1)] == ["MIG off", "3g.40gb at 4"]


async def test_what_is_seen_during_a_change_is_not_acted_on(node: SimulatedNode) -> None:
    """The observation may have the GPU half-way."""
    owners = GpuOwners(open_driver(step_deadline=60), Policy())
    await owners.open()
    gpu = (await owners.observe()).gpus[0]
    uuid = gpu.uuid
    todo = NodePlan(Verdict.APPLICABLE, (plan_gpu(await made(("3g.40gb", 4))(gpu), gpu),))
    node.inject(CREATE, hang=True)
    settling = asyncio.create_task(owners.settle(Part(uuid, made(("1g.10gb", 0)))))
    await until(lambda: node.card(0).state.mig)  # its first step
    looking = asyncio.create_task(owners.observe())  # it has begun, and may see either
    await asyncio.sleep(0)
    node.clear_faults()
    await looking

    async def carried_out() -> int:
        stop = asyncio.Event()
        outcome = await owners.settle_plan(todo, stop=stop, on_progress=lambda _: None)
        return len(outcome.gpus)

    assert await carried_out() == 0
    assert (await settling).problems == ()
    await owners.observe()
    assert await carried_out() == 1
    await owners.close()


async def test_a_change_that_is_left_half_way_is_no_success(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with running(Rig(tmp_path, step_deadline=60)) as rig:
        await without_plan(rig)
        hang = node.inject("nvmlDeviceSetMigMode", hang=True, times=2)
        change = asyncio.create_task(rig.owners.settle(Part(rig.gpu().uuid, made(("1g.10gb", 0)))))
        await rig.until(lambda: hang.times == 1)
        closing = asyncio.create_task(rig.owners.close())
        await asyncio.sleep(0)  # it has asked for the stop, and waits for the step
        node.clear_faults()
        with pytest.raises(NodeagentError, match=r"GPU 0 .* is not finished"):
            await change
        await closing
        assert laid_out(node) == []


async def test_without_a_driver_nothing_is_changed(node: SimulatedNode, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(NodeagentError, match="not open"):
        await rig.owners.settle(Part("GPU-1", made()))
    async with running(rig):
        await without_plan(rig)
        uuid = rig.gpu().uuid
    with pytest.raises(NodeagentError, match="not open"):
        await rig.owners.settle(Part(uuid, made(("1g.10gb", 0))))
    assert not node.card(0).state.mig
