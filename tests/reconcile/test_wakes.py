"""What wakes the loop: tenants now and then, claims together, nobody but a stop while it looks."""

import asyncio
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.loop_control import SETTLE_INTERVAL, Abandoned, Heartbeats, LoopControl
from nodeagent.structs import replace
from nodeagent.views.node_state import Phase
from tests.plan.cards import card, wanted
from tests.processes.real import process_of
from tests.reconcile.test_work_queue import evaluated
from tests.rig import Rig, on_node

H100 = card("h100-80gb")


@pytest.mark.virtual_time
async def test_many_ends_are_looked_at_together() -> None:
    control = LoopControl()
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            control.begin_round()
            rounds += 1
            control.end_round()
            await control.rest(3600)

    looping = asyncio.create_task(loop())
    for _ in range(950):
        control.wake_in_turn("a process ended")
        await asyncio.sleep(0.01)
    assert rounds <= 20, "in some ten seconds"
    control.wake_in_turn("a process ended")
    before = rounds
    await asyncio.sleep(3)
    assert rounds == before + 1
    await asyncio.sleep(60)
    control.wake_in_turn("a process ended")
    await asyncio.sleep(0.01)
    assert rounds == before + 2, "after a quiet time at once"
    looping.cancel()


@pytest.mark.virtual_time
async def test_changes_for_claims_are_looked_at_together() -> None:
    control = LoopControl()
    control.begin_round()
    clock = asyncio.get_running_loop().time
    began, looks = clock(), []
    for _ in range(10):
        control.follow_up(None)
        await asyncio.sleep(SETTLE_INTERVAL / 20)
    for _ in range(2):
        await control.rest(3600)
        looks.append(clock() - began)
        control.begin_round()
        if len(looks) == 1:
            control.follow_up(None)
    assert looks == pytest.approx([SETTLE_INTERVAL, 2 * SETTLE_INTERVAL])


def test_changing_users_are_one_obstacle() -> None:
    now, events = 0.0, EventLog()
    reporter = EventReporter(events, clock=lambda: now)
    desired = wanted(H100, [("1g.10gb", 7)])
    for pid in range(1, 601):
        gpu = replace(H100, usage=Usage((User(pid, "python"),)))
        reporter.obstacles(evaluated(gpu, desired))
        now += 0.1
    found = [event for event in events.events if event.type is EventType.BLOCKED]
    assert len(found) == 1
    now += 1
    reporter.obstacles(evaluated(replace(H100, usage=Usage((User(1000, "python"),))), desired))
    reporter.obstacles(evaluated(H100, desired))
    reporter.obstacles(PlanEvaluation(), (Problem(code=Code.OWNED, message="another program"),))
    found = [event for event in events.events if event.type is EventType.BLOCKED]
    assert len(found) == 3, "what blocks otherwise is reported at once"


async def test_a_tenant_cannot_keep_the_loop_busy(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, node):
        with ExitStack() as stack:
            children = [stack.enter_context(process_of("sleep", "60")) for _ in range(41)]
            node.occupy(0, children[0].pid, follow=True)
            await rig.reach("{1g.10gb: 7}", Phase.BLOCKED)
            begun, began = rig.control.begun, time.monotonic()
            for ends, comes in pairwise(children):
                node.occupy(0, comes.pid, follow=True)
                ends.kill()
                ends.wait()
                await asyncio.sleep(0.02)
            rounds, turns = rig.control.begun - begun, (time.monotonic() - began) / 2.0
            assert rounds <= 15 + turns, "of forty ends within a second or so"
            children[-1].kill()
            children[-1].wait()
            await rig.settle(Phase.IN_SYNC)


async def test_only_a_stop_abandons_a_look() -> None:
    control = LoopControl()
    with pytest.raises(TimeoutError):
        async with control.abandoned_at_stop():
            raise TimeoutError
    control.stop()
    with pytest.raises(Abandoned):
        async with control.abandoned_at_stop():
            raise TimeoutError


def test_a_loop_is_overdue_only_after_its_own_time() -> None:
    now = 0.0
    heartbeats = Heartbeats(lambda: now)
    heartbeats.beat("reconciler", within=60)
    heartbeats.beat("plan file", within=5)
    assert heartbeats.overdue() == ()
    now = 7.0
    assert [sentence.split(" has")[0] for sentence in heartbeats.overdue()] == ["the plan file"]
    heartbeats.beat("plan file", within=5)
    assert heartbeats.overdue() == ()
