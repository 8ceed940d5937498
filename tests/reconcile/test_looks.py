"""How often the loop looks at the GPUs, counted in the driver's calls."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from nodeagent.plan.plan import NodePlan, Policy
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.owner import Part
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.state_file import STATE_VARIABLE
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.text import layout_words
from tests.reconcile.test_change_hooks import Recorded
from tests.reconcile.test_owner import made
from tests.rig import CREATE, Rig, on_node, open_driver, plan_text, running

LOOK = "nvmlDeviceGetMigMode"  # once in each look at a GPU
ONE, TWO = "{1g.10gb: 1}", "{1g.10gb: 2}"


def looks(node: SimulatedNode) -> Counter[int | None]:
    return Counter(call.gpu for call in node.journal.named(LOOK))


async def look_that_waits(rig: Rig, node: SimulatedNode) -> None:
    """Have it look at the GPUs, which takes until the faults are cleared."""
    held = node.inject(LOOK, hang=True, times=1)
    rig.control.wake("the status is requested")
    await rig.until(lambda: not held.times)


async def test_a_plan_offered_during_a_look_is_carried_out_after_it(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, node):
        await rig.reach(ONE)
        await look_that_waits(rig, node)
        rig.offer(TWO)
        begun = node.journal.begun
        node.clear_faults()
        await rig.until(lambda: len(rig.gpu().instances) == 2)
        made = node.journal.named(CREATE)[-1]
        assert not [c for c in node.journal.named(LOOK) if begun < c.number < made.number]


async def test_a_long_look_is_as_old_as_its_end(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, node):
        await rig.reach(ONE)
        await look_that_waits(rig, node)
        before = asyncio.get_running_loop().time()
        node.clear_faults()
        await rig.rest()
        assert rig.control.looked_at >= before


async def test_what_came_of_a_plan_is_known_from_the_gpus_that_it_changed(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path), "h100-80gb:3") as (rig, node):
        await rig.reach(ONE)
        await rig.round()
        before, rounds = looks(node), rig.state.rounds
        rig.offer(plan_text(TWO, "[0]"))
        await rig.until(lambda: len(rig.gpu().instances) == 2)
        await rig.rest()
        assert (looks(node)[1], looks(node)[2]) == (before[1] + 1, before[2] + 1)
        assert rig.state.rounds == rounds + 1
        assert all(i.compute[0].memory for i in rig.gpu().instances)


async def test_all_gpus_are_looked_at_after_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It restarts the driver, which without persistence mode forgets what other cards had."""
    state, switches = tmp_path / "node.json", Switches(persistence_mode=False)
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    with simulated("a100-40gb:2", state=state, switches=switches) as node:
        async with running(Rig(tmp_path, policy=Policy(reset_when_idle=True))) as rig:
            node.card(1).state.mig = node.card(1).state.pending = True
            await rig.reach(plan_text("{3g.20gb: 1}", "[1]"))
            rig.offer(plan_text("{1g.5gb: 7}", "[0]") + b"- {devices: [1], mig: {3g.20gb: 1}}\n")
            await rig.until(lambda: len(rig.gpu().instances) == 7)
            await rig.settle(Phase.IN_SYNC)
            assert [len(node.card(i).state.instances) for i in (0, 1)] == [7, 1]


async def test_what_is_put_back_does_not_wait_for_details(tmp_path: Path) -> None:
    around = Recorded()
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, node):
        await rig.rest()
        held = node.inject("nvmlDeviceGetMemoryInfo", hang=True, times=1)
        rig.offer(ONE)
        await rig.until(lambda: "1g.10gb at 6" in map(layout_words, around.observed.gpus))
        node.clear_faults(held)


async def test_what_was_read_back_for_a_claim_is_reported_without_a_look(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path), "h100-80gb:2") as (rig, node):
        rig.plan.offer(NoPlan("no plan"))
        await rig.settle(Phase.NO_PLAN)
        await rig.round()
        before, at = looks(node)[1], rig.state.observed_at
        await rig.owners.settle(Part(rig.gpu().uuid, made(("1g.10gb", 0))))
        await rig.until(lambda: rig.layout() == "1g.10gb at 0")
        await rig.rest()
        assert (looks(node)[1], rig.state.observed_at) == (before, at)
        rig.control.looked_at -= 3600
        await rig.owners.settle(Part(rig.gpu().uuid, made(("1g.10gb", 1))))
        await rig.until(lambda: looks(node)[1] > before)


async def test_what_another_program_did_since_the_read_back_is_looked_at(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node:

        def reported(state: NodeState) -> None:
            if state.phase is Phase.IN_SYNC and not taken:
                taken.append(node.card(0).state.instances.pop())

        taken: list[object] = []
        async with running(Rig(tmp_path, on_state=reported)) as rig:
            rig.offer(TWO)
            await rig.until(lambda: bool(taken) and len(node.card(0).state.instances) == 2)


async def test_a_plan_does_not_wait_for_what_only_people_ask_for(tmp_path: Path) -> None:
    driver = open_driver()
    async with on_node(Rig(tmp_path, driver=driver)) as (rig, node):
        await rig.reach(ONE)
        await rig.rest()
        driver.details = frozenset(device.uuid for device in rig.gpu().devices())  # are old
        node.journal.clear()
        rig.offer(TWO)
        await rig.until(lambda: len(rig.gpu().instances) == 2)
        await rig.rest()
        (made,) = node.journal.named(CREATE)
        read = [call.number for call in node.journal.named("nvmlDeviceGetMemoryInfo*")]
        assert read
        assert min(read) > made.number


async def test_users_that_came_after_such_a_look_keep_their_device(tmp_path: Path) -> None:
    """It is acted on, but whoever would lose a device is looked for once more before. Their end
    sets the work going again, although the GPU was not looked at in between.
    """
    kept = []
    with simulated("h100-80gb:1") as node:

        def reported(state: NodeState) -> None:
            if state.phase is Phase.BLOCKED:
                kept.append((state.blocking, layout_words(state.observed.gpus[0])))
                node.release()

        async with running(Rig(tmp_path, on_state=reported)) as rig:
            await rig.reach(ONE)
            layout = rig.layout()
            held = node.inject("nvmlDeviceGetMPSComputeRunningProcesses_v3", hang=True)
            rig.control.wake("the status is requested")
            await rig.until(lambda: not held.times)
            node.occupy(rig.gpu().instances[0].compute[0].uuid)
            rig.offer("{7g.80gb: 1}")
            node.clear_faults()
            await rig.until(lambda: rig.layout() == "7g.80gb at 0")
            assert kept == [(frozenset({Code.IN_USE}), layout)]


async def test_what_was_left_half_way_for_a_claim_is_looked_at(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path, step_deadline=60)) as (rig, node):
        rig.plan.offer(NoPlan("no plan"))
        await rig.settle(Phase.NO_PLAN)
        await rig.rest()
        hang = node.inject(CREATE, hang=True)
        part = Part(rig.gpu().uuid, made(("1g.10gb", 0)))
        change = asyncio.create_task(rig.owners.settle(part))
        await rig.until(lambda: not hang.times)
        change.cancel()
        await asyncio.sleep(0)
        node.clear_faults()
        await rig.until(lambda: rig.layout() == "1g.10gb at 0")
        assert change.cancelled()


async def test_what_was_known_before_the_driver_failed_does_not_count(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, node):
        await rig.reach(ONE)
        node.unload_driver()
        await rig.round()
        assert rig.state.phase is Phase.FAILED
        before = looks(node)[0]
        node.load_driver()
        rig.control.report("a claim's")
        await rig.settle(Phase.IN_SYNC)
        assert looks(node)[0] > before


async def test_what_a_claim_leaves_to_do_is_looked_at_before(tmp_path: Path) -> None:
    """Nobody is asked to leave a GPU for what was read some time ago."""
    with simulated("h100-80gb:2") as node:
        prepared: list[int] = []

        class Asked(ChangeHooks):
            async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
                prepared.append(looks(node)[1])
                return ()

        async with running(Rig(tmp_path, hooks=Asked())) as rig:
            await rig.reach(plan_text(ONE, "[0]"))
            before, asked = looks(node)[1], len(prepared)
            await rig.owners.settle(Part(rig.gpu().uuid, made(("1g.10gb", 0), ("1g.10gb", 6))))
            await rig.until(lambda: len(prepared) > asked)
            assert prepared[asked] > before
