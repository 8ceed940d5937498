"""The loop on a simulated node: in sync, blocked, mending drift, and how it stops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase, not_ready
from tests.rig import CREATE, Rig, destruction, do, running


@contextmanager
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this machine that lives until it is killed."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


# --- in sync --------------------------------------------------------------------------------------


async def test_makes_the_node_what_the_plan_says(tmp_path: Path) -> None:
    """A plan becomes the layout on every GPU, which is read back, and reported in this order."""
    with simulated("h100-80gb:2"):
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{3g.40gb: 1, 1g.10gb: 4}")
            await rig.settle(Phase.IN_SYNC)
            for index in (0, 1):
                profiles = sorted(i.profile for i in rig.gpu(index).instances)
                assert profiles == ["1g.10gb"] * 4 + ["3g.40gb"]
            assert [s.phase for s in rig.states][:2] == [Phase.WORKING, Phase.IN_SYNC]
            assert rig.state.digest.startswith("sha256:")
            applied = EventType.APPLIED
            assert rig.reported() == [EventType.PLAN_ACCEPTED, applied, applied]
            assert not_ready(rig.state) == ()


async def test_without_a_plan_nothing_is_done(tmp_path: Path) -> None:
    """A node whose plan file is missing is left as it is, and says why it does nothing."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.plan.offer(NoPlan("the plan file /etc/x does not exist"))
            await rig.settle(Phase.NO_PLAN)
            assert rig.layout() == "MIG off"
            assert rig.state.sentence == "the plan file /etc/x does not exist"
            assert rig.state.digest == ""


async def test_a_second_look_does_nothing(tmp_path: Path) -> None:
    """In sync means no steps, however often something wakes the loop."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            before = [i.compute[0].uuid for i in rig.gpu().instances]
            for _ in range(3):
                await rig.round()
            assert [i.compute[0].uuid for i in rig.gpu().instances] == before
            assert Phase.WORKING not in [s.phase for s in rig.states[1:]]


async def test_only_the_newest_plan_counts(tmp_path: Path) -> None:
    """A plan that comes while an older one is being carried out wins at the next step."""
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
    """What is in use stays, its user is named, and his end alone sets the work going again."""
    with simulated("h100-80gb:1") as node, process() as user:
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            used = rig.gpu().instances[0].compute[0].uuid
            node.occupy(used, user.pid, follow=True)
            rig.offer("{7g.80gb: 1}")
            await rig.settle(Phase.BLOCKED)
            assert rig.codes == {Code.IN_USE}
            assert f"pid {user.pid} (" in rig.state.sentence
            assert used in [i.compute[0].uuid for i in rig.gpu().instances]
            assert len(rig.gpu().instances) == 2
            user.kill()
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout() == "7g.80gb at 0"
            assert rig.reported(EventType.BLOCKED) == [EventType.BLOCKED]


async def test_one_blocked_gpu_does_not_stop_the_others(tmp_path: Path) -> None:
    """GPUs are independent."""
    with simulated("h100-80gb:3") as node:
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            node.occupy(rig.gpu(1).instances[0].compute[0].uuid)
            rig.offer("{7g.80gb: 1}")
            await rig.settle(Phase.BLOCKED)
            assert [rig.layout(i) for i in (0, 2)] == ["7g.80gb at 0"] * 2
            assert rig.layout(1) == "3g.40gb at 0, 4"


async def test_a_mode_change_that_needs_a_reset_blocks(tmp_path: Path) -> None:
    """On Ampere the agent never resets by itself: it says what is needed."""
    with simulated("a100-40gb:1") as node:
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.5gb: 7}")
            await rig.settle(Phase.BLOCKED)
            assert rig.codes == {Code.RESET_REQUIRED}
            assert "reset" in rig.state.sentence
            node.reset(0)
            await rig.round()
            assert rig.state.phase is Phase.IN_SYNC
            assert rig.layout() == "1g.5gb at 0, 1, 2, 3, 4, 5, 6"


async def test_a_reset_that_is_allowed_is_done_on_an_idle_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `reset: whenIdle` the idle GPU is reset and divided; the one in use waits for its user,
    unharmed.
    """
    state = tmp_path / "node.json"
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(state))
    with simulated("a100-40gb:2", state=state) as node, process() as user:
        node.occupy(1, user.pid, follow=True)
        async with running(Rig(tmp_path, policy=Policy(reset_when_idle=True))) as rig:
            rig.offer("{1g.5gb: 7}")
            await rig.settle(Phase.BLOCKED)
            assert rig.layout(0) == "1g.5gb at 0, 1, 2, 3, 4, 5, 6"
            assert rig.layout(1) == "MIG off"
            assert rig.codes == {Code.IN_USE}
            assert [u.pid for u in rig.gpu(1).usage.processes] == [user.pid]
            user.kill()
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout(1) == "1g.5gb at 0, 1, 2, 3, 4, 5, 6"


# --- drift ----------------------------------------------------------------------------------------


async def test_drift_is_mended(tmp_path: Path) -> None:
    """What another program took away comes back, and the event says that it was another program."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
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
    """The hardware is left as found, the phase does not claim otherwise, and a new plan acts."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path, mend=False)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
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
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            await do(destruction(rig.gpu()))
            await rig.round()
            assert rig.codes == {Code.DRIFT}
        async with running(Rig(tmp_path, mend=False)) as rig:  # the other remedy
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)
            assert len(rig.gpu().instances) == 2


async def test_the_resync_timer_finds_drift(tmp_path: Path) -> None:
    """Without any wake-up the node is looked at again."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path, resync=0.05)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            await do(destruction(rig.gpu()))
            await rig.until(lambda: EventType.DRIFT in rig.reported())
            await rig.until(lambda: rig.state.phase is Phase.IN_SYNC)


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMigMode"])
async def test_a_look_that_hangs_does_not_keep_it_from_stopping(
    tmp_path: Path, function: str
) -> None:
    """Nothing is changed by a look, so it is left; nothing is called a failure for that."""
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
    """Stopped in the middle of a step: that step ends, no other begins, nothing is restored,
    and the next start goes on from there.
    """
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
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            assert {i.compute[0].uuid for i in rig.gpu().instances} >= set(kept)
            assert rig.layout() == "1g.10gb at 0, 1, 2, 3, 4, 5, 6"
