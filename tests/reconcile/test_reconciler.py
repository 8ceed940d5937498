"""The loop on a simulated node: every phase, and the way into and out of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import DestroyGpuInstance
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.last_good_plan import FILE_NAME, last_good_plan
from nodeagent.reconcile.plan_update import NoPlan, PlanText, UnreadablePlan
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase, not_ready
from tests.rig import Rig, do, plan_text, running

CREATE = "nvmlDeviceCreateGpuInstance*"


def destruction(gpu: Gpu, position: int = 0) -> DestroyGpuInstance:
    """The step that takes one of a GPU's instances away."""
    instance = gpu.instances[position]
    devices = tuple(device.uuid for device in instance.compute)
    return DestroyGpuInstance(
        gpu.uuid, instance.id, instance.profile, instance.placement, devices, "a test"
    )


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
            assert [s.phase for s in rig.states] == [Phase.WORKING, Phase.IN_SYNC]
            assert rig.state.digest.startswith("sha256:")
            applied = EventType.APPLIED
            assert rig.reported() == [EventType.PLAN_ACCEPTED, applied, applied]
            assert not_ready(rig.state) == ()


async def test_without_a_plan_nothing_is_done(tmp_path: Path) -> None:
    """A node whose plan file is missing is left as it is, and says why it does nothing."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.control.offer(NoPlan("the plan file /etc/x does not exist"))
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


# --- rejected -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"version: v1\ngpus: [", Code.SYNTAX),
        (b"version: v1\nGPUs: []\n", Code.UNKNOWN_KEY),
        (b"\x00\xff\xfe", Code.SYNTAX),
        (plan_text("{9g.90gb: 1}"), Code.UNKNOWN_PROFILE),
        (plan_text("{1g.10gb: 8}"), Code.DOES_NOT_FIT),
        (plan_text("{1g.10gb: 1}", "[5]"), Code.UNKNOWN_DEVICE),
    ],
)
async def test_a_rejected_plan_leaves_the_last_good_one_in_force(
    tmp_path: Path, bad: bytes, code: Code
) -> None:
    """Whatever is wrong with the newest: nothing is touched, both digests are reported, and what
    is in force is still enforced.
    """
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 2, 3g.40gb: 1}")
            await rig.settle(Phase.IN_SYNC)
            good, layout = rig.state.digest, rig.layout()
            rig.offer(bad)
            await rig.settle(Phase.REJECTED)
            assert code in rig.codes
            assert rig.state.digest == good
            assert rig.state.refusal
            assert rig.state.refusal.digest not in ("", good)
            await do(destruction(rig.gpu()))
            await rig.round()
            assert rig.layout() == layout
            assert rig.state.phase is Phase.REJECTED
            rig.offer("{1g.10gb: 2, 3g.40gb: 1}")
            await rig.settle(Phase.IN_SYNC)
            assert rig.reported(EventType.PLAN_REJECTED) == [EventType.PLAN_REJECTED]


async def test_rejected_with_nothing_in_force_touches_nothing(tmp_path: Path) -> None:
    """A first plan that is wrong leaves the hardware alone."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 99}")
            await rig.settle(Phase.REJECTED)
            assert rig.layout() == "MIG off"
            assert rig.state.digest == ""
            assert "no plan is in force" in rig.events.events[0].message


async def test_an_unreadable_carrier_is_a_rejection(tmp_path: Path) -> None:
    """A plan file that cannot be read is reported like a wrong one."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.control.offer(UnreadablePlan(Problem(Code.SYNTAX, "it cannot be read")))
            await rig.settle(Phase.REJECTED)
            assert rig.state.problems[0].message == "it cannot be read"


@pytest.mark.parametrize("later", [PlanText(b"version: v2"), NoPlan("it is gone")])
async def test_after_a_restart_the_last_good_plan_holds(
    tmp_path: Path, later: PlanText | NoPlan
) -> None:
    """A node that reboots into a wrong or missing plan gets the layout it had."""
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path)) as rig:
            rig.offer("{1g.10gb: 2, 3g.40gb: 1}")
            await rig.settle(Phase.IN_SYNC)
            layout, digest = rig.layout(), rig.state.digest
        node.reboot()
        async with running(Rig(tmp_path)) as rig:
            rig.control.offer(later)
            gone = isinstance(later, NoPlan)
            await rig.settle(Phase.IN_SYNC if gone else Phase.REJECTED)
            assert (rig.layout(), rig.state.digest) == (layout, digest)
            if gone:
                assert rig.state.note == "it is gone; the last good plan stays in force"


async def test_a_damaged_last_good_plan_is_reported_and_not_used(tmp_path: Path) -> None:
    """Nothing is guessed from a broken file."""
    (tmp_path / "last-good-plan").write_text("{")
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig:
            rig.control.offer(NoPlan("no plan"))
            await rig.settle(Phase.NO_PLAN)
            assert rig.layout() == "MIG off"
            assert "last-good-plan cannot be used" in rig.events.events[0].message


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
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.IN_SYNC)


async def test_the_resync_timer_finds_drift(tmp_path: Path) -> None:
    """Without any wake-up the node is looked at again."""
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path, resync=0.05)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            await do(destruction(rig.gpu()))
            await rig.until(lambda: EventType.DRIFT in rig.reported())
            await rig.until(lambda: rig.state.phase is Phase.IN_SYNC)


# --- failed ---------------------------------------------------------------------------------------


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


async def test_a_lost_gpu_is_reported_and_left_alone(tmp_path: Path) -> None:
    """The others get their layout; the lost one gets it when it is back."""
    with simulated("h100-80gb:2") as node:
        async with running(Rig(tmp_path, retry=0.05)) as rig:
            rig.offer("{1g.10gb: 1}")
            await rig.settle(Phase.IN_SYNC)
            node.lose(1)
            rig.offer("{3g.40gb: 2}")
            await rig.settle(Phase.FAILED)
            assert rig.layout(0) == "3g.40gb at 0, 4"
            assert rig.gpu(1).access is Access.LOST
            assert Code.GPU_LOST in rig.codes
            node.reset(1)
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout(1) == "3g.40gb at 0, 4"
            lost, back = EventType.GPU_LOST, EventType.GPU_RETURNED
            assert rig.reported(lost, back) == [lost, back]


async def test_a_hanging_gpu_does_not_stop_the_others(tmp_path: Path) -> None:
    """A call that does not return costs its GPU alone, and is got over when it ends."""
    with simulated("h100-80gb:2") as node:
        async with running(
            Rig(tmp_path, step_deadline=0.5, observe_deadline=0.5, retry=0.1)
        ) as rig:
            hang = node.inject(CREATE, hang=True, gpu=0)
            try:
                rig.offer("{3g.40gb: 2}")
                await rig.settle(Phase.FAILED)
                assert rig.layout(1) == "3g.40gb at 0, 4"
                assert rig.gpu(0).access is not Access.OK
            finally:
                node.clear_faults(hang)
            await rig.settle(Phase.IN_SYNC)
            assert rig.layout(0) == "3g.40gb at 0, 4"


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


async def test_a_plan_that_could_not_be_kept_is_kept_later(tmp_path: Path) -> None:
    """A disk that was full once must not cost the plan at the next restart; it is reported once."""
    folder = tmp_path / "state"
    folder.touch()
    with simulated("h100-80gb:1"):
        async with running(Rig(folder)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.settle(Phase.IN_SYNC)
            await rig.round()
            assert sum("cannot be kept" in event.message for event in rig.events.events) == 1
            folder.unlink()
            await rig.round()
            kept = last_good_plan(folder / FILE_NAME).load()
            assert kept == PlanText(plan_text("{1g.10gb: 7}"))


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
