"""How often the loop looks at the GPUs, counted in the driver's calls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.text import layout_words
from tests.rig import CREATE, Rig, open_driver, plan_text, running

LOOK = "nvmlDeviceGetMigMode"  # once in each look at a GPU
ONE, TWO = "{1g.10gb: 1}", "{1g.10gb: 2}"


def looks(node: SimulatedNode) -> Counter[int | None]:
    """How often each GPU was looked at."""
    return Counter(call.gpu for call in node.journal.named(LOOK))


async def test_a_plan_offered_during_a_look_is_carried_out_after_it(tmp_path: Path) -> None:
    """No other look is needed before the first step, and none is left out."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path)) as rig:
            rig.offer(ONE)
            await rig.settle(Phase.IN_SYNC)
            held = node.inject(LOOK, hang=True, times=1)
            rig.control.wake("the status is requested")
            await rig.until(lambda: not held.times)
            rig.offer(TWO)
            begun = node.journal.begun
            node.clear_faults()
            await rig.until(lambda: len(rig.gpu().instances) == 2)
            made = node.journal.named(CREATE)[-1]
            assert not [c for c in node.journal.named(LOOK) if begun < c.number < made.number]


async def test_what_came_of_a_plan_is_known_from_the_gpus_that_it_changed(tmp_path: Path) -> None:
    """They were read back; the others were looked at just before, and are looked at afterwards."""
    at_end: list[Counter[int | None]] = []
    with simulated("h100-80gb:3") as node:

        def reported(state: NodeState) -> None:
            if state.phase is Phase.IN_SYNC:
                at_end.append(looks(node))

        async with running(Rig(tmp_path, on_state=reported)) as rig:
            rig.offer(ONE)
            await rig.settle(Phase.IN_SYNC)
            await rig.round()
            before = looks(node)
            at_end.clear()
            rig.offer(plan_text(TWO, "[0]"))
            await rig.until(lambda: bool(at_end) and len(rig.gpu().instances) == 2)
            assert (at_end[0][1], at_end[0][2]) == (before[1] + 1, before[2] + 1)
            await rig.until(lambda: looks(node)[2] == before[2] + 2)


async def test_a_plan_does_not_wait_for_what_only_people_ask_for(tmp_path: Path) -> None:
    """Memory and compute modes of MIG devices are read after it."""
    driver = open_driver()
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path, driver=driver)) as rig:
            rig.offer(ONE)
            await rig.settle(Phase.IN_SYNC)
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
            rig.offer(ONE)
            await rig.settle(Phase.IN_SYNC)
            layout = rig.layout()
            held = node.inject("nvmlDeviceGetMPSComputeRunningProcesses_v3", hang=True)
            rig.control.wake("the status is requested")
            await rig.until(lambda: not held.times)
            node.occupy(rig.gpu().instances[0].compute[0].uuid)
            rig.offer("{7g.80gb: 1}")
            node.clear_faults()
            await rig.until(lambda: rig.layout() == "7g.80gb at 0")
            assert kept == [(frozenset({Code.IN_USE}), layout)]
