"""Changes that fail, GPUs that are lost or hang, and a driver that is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from nodeagent.simulation import Switches, simulated
from nodeagent.simulation.state_file import STATE_VARIABLE
from nodeagent.views.node_state import Phase, not_ready
from tests.rig import CREATE, Rig, plan_text, running

# --- a change that fails --------------------------------------------------------------------------


async def test_a_failed_gpu_is_restored_and_tried_again(tmp_path: Path) -> None:
    """A step fails once: the earlier layout comes back, and after a while the plan is reached."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path, retry=0.2)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            node.inject(CREATE, error="UNKNOWN", times=1, skip=2)
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.FAILED)
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
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path, retry=0.2)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            node.inject("nvmlComputeInstanceDestroy", error="IN_USE", times=1, skip=1)
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.BLOCKED)
            assert rig.layout() == "3g.40gb at 0, 4"
            assert rig.codes == {Code.IN_USE}
            await rig.settle(Phase.IN_SYNC)
            kinds = (EventType.BLOCKED, EventType.RESTORED, EventType.APPLIED)
            assert rig.reported(*kinds, EventType.FAILED)[1:] == list(kinds)


async def test_the_same_failure_is_not_repeated_at_every_wake_up(tmp_path: Path) -> None:
    """No endless destroying and creating: until its time comes, a failed GPU is left alone."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            node.inject(CREATE, error="UNKNOWN", times=1, skip=2)
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.FAILED)
            for _ in range(5):
                await rig.round()
                assert rig.state.phase is Phase.FAILED
            assert rig.layout() == "3g.40gb at 0, 4"
            assert len(rig.reported(EventType.FAILED)) == 1
            rig.offer(plan_text("{1g.10gb: 7}") + b"# again, please\n")
            await rig.settle(Phase.IN_SYNC)


@pytest.mark.parametrize("how", ["NOT_SUPPORTED", "in vain"])
async def test_a_reset_that_is_refused_for_good_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The MIG mode is set once and stays pending; after a reboot the plan is applied."""
    state = tmp_path / "node.json"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    with simulated("a100-40gb:1", state=state, switches=Switches(gpu_reset=how)) as node:
        async with running(Rig(tmp_path, retry=0, policy=Policy(reset_when_idle=True))) as rig:
            rig.offer("{1g.5gb: 1}")
            await rig.settle(Phase.BLOCKED)
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
    """Without a reboot: the plan holds for the new one, and nothing is missing."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path, retry=0.05)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
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
    """Without the driver the agent says so in one sentence, is not ready, and goes on trying."""
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


async def test_a_driver_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """A driver reload in the middle of life is got over without a restart."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path, retry=0.05)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            layout = rig.layout()
            node.unload_driver()
            await rig.round()
            assert rig.state.phase is Phase.FAILED
            assert "driver is not loaded" in not_ready(rig.state)[0]
            node.load_driver()
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout() == layout
            assert not_ready(rig.state) == ()


async def test_a_driver_that_only_starts_has_not_returned(tmp_path: Path) -> None:
    """It is said to answer when it listed its GPUs, and not again and again before."""
    with simulated("h100-80gb:1") as node:
        failing = node.inject("nvmlDeviceGetCount_v2", error="UNKNOWN", times=None)
        async with running(Rig(tmp_path, retry=0.02)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: node.journal.total("nvmlInitWithFlags") > 4)
            assert rig.reported() == [EventType.DRIVER_UNAVAILABLE]
            node.clear_faults(failing)
            await rig.settle(Phase.IN_SYNC)
            assert rig.reported().count(EventType.DRIVER_RETURNED) == 1
