"""The loop on a simulated node: in sync, blocked, drift, failures, stops, a missing driver."""

import asyncio
import threading
from pathlib import Path

import pytest

from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import Switches, simulated
from nodeagent.simulation.state_file import STATE_VARIABLE
from nodeagent.views.node_state import Phase, not_ready
from tests.processes.real import process_of
from tests.rig import CREATE, Rig, destruction, do, on_node, plan_text, running

# --- in sync --------------------------------------------------------------------------------------


async def test_without_a_plan_nothing_is_done(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, _):
        rig.plan.offer(NoPlan("the plan file /etc/x does not exist"))
        await rig.settle(Phase.NO_PLAN)
        assert rig.layout() == "MIG off"
        assert rig.state.sentence == "the plan file /etc/x does not exist"
        assert rig.state.digest == ""


async def test_only_the_newest_plan_counts(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node:
        node.inject(CREATE, delay=0.05, times=None)
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: rig.state.phase is Phase.WORKING)
            rig.offer("{7g.80gb: 1}")
            await rig.until(lambda: rig.state.phase is Phase.IN_SYNC)
            assert rig.layout() == "7g.80gb at 0"
            assert EventType.FAILED not in rig.reported()


# --- blocked --------------------------------------------------------------------------------------


async def test_blocked_until_the_user_ends(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node, process_of("sleep", "60") as user:
        async with running(Rig(tmp_path)) as rig:
            await rig.reach("{3g.40gb: 2}")
            used = rig.gpu().instances[0].compute[0].uuid
            node.occupy(used, user.pid, follow=True)
            await rig.reach("{7g.80gb: 1}", Phase.BLOCKED)
            assert rig.codes == {Code.IN_USE}
            assert f"pid {user.pid} (" in rig.state.sentence
            assert used in [i.compute[0].uuid for i in rig.gpu().instances]
            assert len(rig.gpu().instances) == 2
            user.kill()
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout() == "7g.80gb at 0"
            assert rig.reported(EventType.BLOCKED) == [EventType.BLOCKED]


# --- drift ----------------------------------------------------------------------------------------


async def test_drift_is_mended(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, _):
        await rig.reach("{1g.10gb: 7}")
        layout = rig.layout()
        await do(destruction(rig.gpu(), 3))
        await rig.round()
        assert rig.state.phase is Phase.IN_SYNC
        assert rig.layout() == layout
        assert rig.reported(EventType.DRIFT) == [EventType.DRIFT]
        changes = [(e.before, e.after) for e in rig.events.events if e.after]
        drifted = layout.replace(", 3", "")
        assert changes == [("MIG off", layout), (layout, drifted), (drifted, layout)]


async def test_drift_is_only_reported_when_the_setting_says_so(tmp_path: Path) -> None:
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path, mend=False)) as rig:
            await rig.reach("{1g.10gb: 7}")
            await do(destruction(rig.gpu(), 3))
            for _ in range(2):
                await rig.round()
                assert rig.state.phase is Phase.FAILED
                assert rig.codes == {Code.DRIFT}
                assert len(rig.gpu().instances) == 6
            assert rig.reported(EventType.DRIFT) == [EventType.DRIFT]
            text = "{1g.10gb: 7}  # written anew, and the same for this GPU"
            rig.offer(text)
            await rig.round()
            assert (rig.codes, len(rig.gpu().instances)) == ({Code.DRIFT}, 6)
            assert "change what the plan says of this GPU" in rig.state.problems[0].remedy
            await rig.reach("{3g.40gb: 2}")
            await do(destruction(rig.gpu()))
            await rig.round()
            assert rig.codes == {Code.DRIFT}
        async with running(Rig(tmp_path, mend=False)) as rig:  # the other remedy
            await rig.reach("{3g.40gb: 2}")
            assert len(rig.gpu().instances) == 2


async def test_the_resync_timer_finds_drift(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path, resync=0.05)) as (rig, _):
        await rig.reach("{1g.10gb: 7}")
        await do(destruction(rig.gpu()))
        await rig.until(lambda: EventType.DRIFT in rig.reported())
        await rig.until(lambda: rig.state.phase is Phase.IN_SYNC)


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMigMode"])
async def test_a_look_that_hangs_does_not_keep_it_from_stopping(
    tmp_path: Path, function: str
) -> None:
    with simulated("h100-80gb:2") as node:
        hang = node.inject(function, hang=True, times=1000)
        async with running(Rig(tmp_path, observe_deadline=60)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: hang.times != 1000)
            assert driver_threads()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 30
        assert rig.reported() == []
        node.clear_faults()
        await rig.until(lambda: not driver_threads())


def driver_threads() -> list[str]:
    """The threads in which calls to the driver are made, or hang."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("driver calls")]


async def test_stops_between_two_steps(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node:
        third = node.inject(CREATE, hang=True, skip=2)
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: third.times == 0)
            rig.control.stop()
            node.clear_faults()
        assert len(rig.gpu().instances) == 3
        assert rig.state.phase is Phase.WORKING
        assert EventType.FAILED not in rig.reported()
        kept = [i.compute[0].uuid for i in rig.gpu().instances]
        async with running(Rig(tmp_path)) as rig:
            await rig.reach("{1g.10gb: 7}")
            assert {i.compute[0].uuid for i in rig.gpu().instances} >= set(kept)
            assert rig.layout() == "1g.10gb at 0, 1, 2, 3, 4, 5, 6"


# --- a change that fails --------------------------------------------------------------------------


async def test_a_failed_gpu_is_restored_and_tried_again(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path, retry=0.2)) as (rig, node):
        await rig.reach("{3g.40gb: 2}")
        node.inject(CREATE, error="UNKNOWN", times=1, skip=2)
        await rig.reach("{1g.10gb: 7}", Phase.FAILED)
        assert rig.layout() == "3g.40gb at 0, 4"
        assert Code.STEP_FAILED in rig.codes
        assert Code.NOT_RESTORED not in rig.codes
        await rig.settle(Phase.IN_SYNC)
        assert len(rig.gpu().instances) == 7
        kinds = (EventType.FAILED, EventType.RESTORED, EventType.APPLIED)
        assert rig.reported(*kinds)[1:] == list(kinds)
        failed, step = (
            next(event for event in rig.events.events if event.type is kind)
            for kind in (EventType.FAILED, EventType.STEP_FAILED)
        )
        assert failed.facts == {"attempt": 1, "pause": 0.2}
        assert step.message.startswith("step failed: create 1g.10gb at ")
        assert "this place leaves most room" in step.reason
        assert "restores the earlier layout" in {event.reason for event in rig.events.events}


async def test_what_the_driver_itself_calls_in_use_is_blocked(tmp_path: Path) -> None:
    """Although no user was seen: nothing is wrong with the GPU, it is tried again later."""
    async with on_node(Rig(tmp_path, retry=0.2)) as (rig, node):
        await rig.reach("{3g.40gb: 2}")
        node.inject("nvmlComputeInstanceDestroy", error="IN_USE", times=1, skip=1)
        await rig.reach("{1g.10gb: 7}", Phase.BLOCKED)
        assert rig.layout() == "3g.40gb at 0, 4"
        assert rig.codes == {Code.IN_USE}
        await rig.settle(Phase.IN_SYNC)
        kinds = (EventType.BLOCKED, EventType.RESTORED, EventType.APPLIED)
        assert rig.reported(*kinds, EventType.FAILED)[1:] == list(kinds)


async def test_the_same_failure_is_not_repeated_at_every_wake_up(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, node):
        await rig.reach("{3g.40gb: 2}")
        node.inject(CREATE, error="UNKNOWN", times=1, skip=2)
        await rig.reach("{1g.10gb: 7}", Phase.FAILED)
        for _ in range(5):
            await rig.round()
            assert rig.state.phase is Phase.FAILED
        assert rig.layout() == "3g.40gb at 0, 4"
        assert len(rig.reported(EventType.FAILED)) == 1
        await rig.reach(plan_text("{1g.10gb: 7}") + b"# again, please\n")


@pytest.mark.parametrize("how", ["NOT_SUPPORTED", "in vain"])
async def test_a_reset_that_is_refused_for_good_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    state = tmp_path / "node.json"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    with simulated("a100-40gb:1", state=state, switches=Switches(gpu_reset=how)) as node:
        async with running(Rig(tmp_path, retry=0, policy=Policy(reset_when_idle=True))) as rig:
            await rig.reach("{1g.5gb: 1}", Phase.BLOCKED)
            for _ in range(3):
                await rig.round()
                assert (rig.state.phase, rig.codes) == (Phase.BLOCKED, {Code.RESET_REQUIRED})
            assert node.journal.total("nvmlDeviceSetMigMode") == 1
            assert len(rig.reported(EventType.STEP_FAILED)) == 1
            assert not rig.reported(EventType.FAILED, EventType.RESTORED)
            node.reboot()
            await rig.round()
            assert rig.state.phase is Phase.IN_SYNC


# --- GPUs and drivers that do not answer ----------------------------------------------------------


async def test_a_gpu_that_another_is_put_in_place_of(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path, retry=0.05)) as (rig, node):
        await rig.reach("{3g.40gb: 2}")
        first = rig.gpu().uuid
        node.lose(0)
        await rig.round()
        assert rig.codes == {Code.GPU_LOST}
        node.swap(0)
        await rig.settle(Phase.IN_SYNC)
        assert rig.gpu().uuid != first
        assert len(rig.state.observed.gpus) == 1
        assert rig.layout() == "3g.40gb at 0, 4"


async def test_waits_for_a_driver_that_is_not_there(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node:
        node.unload_driver()
        async with running(Rig(tmp_path, retry=0.1)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: rig.state.phase is Phase.FAILED)
            assert "driver" in rig.state.sentence.casefold()
            assert len(not_ready(rig.state)) == 2
            await asyncio.sleep(0.3)
            assert rig.reported() == [EventType.DRIVER_UNAVAILABLE]
            node.load_driver()
            await rig.settle(Phase.IN_SYNC)
            assert EventType.DRIVER_RETURNED in rig.reported()
            assert not_ready(rig.state) == ()


async def test_a_driver_that_only_starts_has_not_returned(tmp_path: Path) -> None:
    with simulated("h100-80gb:1") as node:
        failing = node.inject("nvmlDeviceGetCount_v2", error="UNKNOWN", times=None)
        async with running(Rig(tmp_path, retry=0.02)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: node.journal.total("nvmlInitWithFlags") > 4)
            assert rig.reported() == [EventType.DRIVER_UNAVAILABLE]
            node.clear_faults(failing)
            failing = node.inject("nvmlDeviceGetCount_v2", error="TIMEOUT", times=None)
            await rig.until(lambda: len(rig.reported()) == 2)
            facts = rig.events.events[-1].facts
            assert facts
            assert facts["attempt"] > 1  # by which it pauses
            node.clear_faults(failing)
            await rig.settle(Phase.IN_SYNC)
            assert rig.reported().count(EventType.DRIVER_RETURNED) == 1
