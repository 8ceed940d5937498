"""Plans with MPS while the driver or the daemons fail.

Whatever fails: a client's daemon goes on under its pid, what is said is what is so, and the next
round reaches the plan.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from nodeagent.errors import DriverError
from nodeagent.mps.processes import SERVER
from nodeagent.plan.plan import StepResult
from nodeagent.plan.problems import Code as Problems
from nodeagent.plan.steps import StopMps
from nodeagent.simulation import Code
from nodeagent.views.plan_report import outcome_json
from tests.acceptance.mps_bench import AFTER, BEFORE, Bench, bench, problems
from tests.machine_load import stretched
from tests.mps.fleet_rig import quick, status, until
from tests.reconcile.controller_rig import mig_devices

CHANGING = (
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance*",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
)
# All calls of a round, which takes minutes, or a few of them, evenly spread.
THOROUGH = bool(os.environ.get("NODEAGENT_TEST_ALL_CODES"))
SPREAD = 10_000 if THOROUGH else 4
AFTER_THEIR_WORK = CHANGING if THOROUGH else CHANGING[:2]


# --- the driver -----------------------------------------------------------------------------------


@pytest.mark.timeout(1800 if THOROUGH else 600)  # some dozen whole rounds, with real processes
@pytest.mark.full
@pytest.mark.parametrize("spread", [0, SPREAD])
async def test_every_kind_of_driver_call_fails_once(spread: int) -> None:
    """Calls that change something, instead of their work and after it, and others spread over the
    whole round: never a lie, never a wedge, never a client's daemon ended.
    """
    async with bench() as made:
        before = made.node.journal.total()
        assert not problems(await made.agent.reach(made.turn(), parallel=2))
        count = made.node.journal.total() - before
        for function in CHANGING:
            await _one_fault(made, function, name=function)
        for function in AFTER_THEIR_WORK if spread else AFTER_THEIR_WORK[:1]:
            await _one_fault(made, f"after {function}", name=function, applied=True)
        for number in range(1, count, max(1, count // spread)) if spread else ():
            await _one_fault(made, f"call {number} of {count}", at=number)


async def _one_fault(
    made: Bench, where: str, *, name: str = "*", applied: bool = False, at: int | None = None
) -> None:
    node, goal = made.node, made.turn()
    at_call = None if at is None else node.journal.total() + at
    fault = node.inject(name, error=Code.UNKNOWN, times=1, applied=applied, at_call=at_call)
    try:
        outcome = await made.agent.reach(goal, parallel=2)
    except DriverError:  # nothing could be observed, so nothing was begun
        pass
    else:
        made.check_reported(outcome.gpus, where)
    node.clear_faults(fault)
    made.check_clients(where)
    again = await made.agent.reach(goal, parallel=2)
    assert not problems(again), f"{where}: wedged"
    made.check_reported(again.gpus, where)
    rest = await made.agent.planned(goal)
    assert not rest.steps, f"{where}: the plan is not reached later"
    made.check_clients(where)


# --- the daemons ----------------------------------------------------------------------------------


STARTS = {  # with knobs of all daemons that start from then on
    "start_error": "no such device",
    "slow_start": 30.0,
    "hang": True,
    "busy": "error",
    "ignore_settings": True,
    "die_after": 0.0,
}


@pytest.mark.parametrize(
    "knob",
    [
        "start_error",
        *(
            pytest.param(knob, marks=pytest.mark.full)
            for knob in ("hang", "slow_start", "busy", "ignore_settings", "die_after")
        ),
    ],
)
async def test_a_daemon_that_does_not_start(knob: str) -> None:
    """It fails alone, the layout is as planned, the report says which and why; when its trouble is
    over it is Ready, and no other daemon or client was disturbed.
    """
    # Those that are well have to start in this time, too, on a machine that is busy.
    async with bench(policy=quick(start_deadline=10.0, limit_deadline=5.0)) as made:
        assert not problems(await made.agent.reach(BEFORE, parallel=2))
        made.goal = AFTER
        await _no_start(made, knob)


async def _no_start(made: Bench, knob: str) -> None:
    fleet, others = made.agent.fleet, [made.rig.knobs(d.device) for d in made.agent.fleet.running()]
    for knobs in others:  # one's own count more than everybody's
        knobs.turn(knob, NOT[knob])
    made.rig.knobs(None).turn(knob, STARTS[knob])
    outcome = await made.agent.reach(AFTER, parallel=2)
    made.check_reported(outcome.gpus, knob)
    made.check_clients(knob)
    assert [problem.code for problem in problems(outcome)] == [Problems.MPS], knob
    data = outcome_json(outcome, digest="", source="file")
    steps = [s for gpu in data["gpus"] for s in gpu["steps"] if s["result"] != "done"]
    failed = ("startMps", "failed", "1g.10gb")
    assert [(s["kind"], s["result"], s["profile"]) for s in steps] == [failed], knob
    assert "could not start MPS on 1g.10gb at 1" in data["problems"][0]["message"]
    made.rig.knobs(None).clear()
    for knobs in others:
        knobs.clear()
    fleet.retry()
    await until(lambda: all(daemon.is_ready for daemon in fleet.statuses()))
    again = await made.agent.reach(AFTER)
    made.check_reported(again.gpus, knob)
    assert not problems(again), knob
    assert len(fleet.running()) == 3, knob
    made.check_clients(knob)


# What turns each of them back for one daemon, while it is turned for all.
NOT: dict[str, Any] = {
    "start_error": None,
    "slow_start": 0.0,
    "hang": False,
    "busy": None,
    "ignore_settings": False,
    "die_after": None,
}


@pytest.mark.parametrize(
    "knob",
    [
        "hang",
        pytest.param("busy", marks=pytest.mark.full),
        pytest.param("deaf", marks=pytest.mark.full),
        pytest.param("server_deaf", marks=pytest.mark.full),
    ],
)
async def test_a_daemon_that_does_not_stop_as_it_should(knob: str) -> None:
    """One without clients: it ends all the same, or nothing is taken from under it, and the report
    says so; the others have their clients.
    """
    async with bench() as made:
        assert not problems(await made.agent.reach(BEFORE, parallel=2))
        await _no_stop(made, knob)


async def _no_stop(made: Bench, knob: str) -> None:
    fleet = made.agent.fleet
    first = mig_devices((await made.agent.node.observe()).gpus[1])[0].uuid
    with made.rig.slot(first, "replica-0", at=first) as client:
        client.wait_until_accepted()  # so that there is a server
        await until(lambda: bool(status(fleet, first).clients))
    await until(lambda: not status(fleet, first).clients)
    made.rig.knobs(first).turn(knob, "error" if knob == "busy" else True)
    outcome = await made.agent.reach(AFTER, parallel=2)
    made.check_reported(outcome.gpus, knob)
    made.check_clients(knob)
    [stop] = [r for r in outcome.gpus[1].steps if isinstance(r.step, StopMps)]
    if stop.result is not StepResult.DONE:
        assert outcome.gpus[1].turned_back, knob
        there = {device.uuid for device in mig_devices(outcome.gpus[1].after)}
        assert first in there, f"{knob}: its device went from under it"
    made.rig.knobs(first).clear()
    async with asyncio.timeout(stretched(120)):
        while True:
            await fleet.poll()
            again = await made.agent.reach(AFTER, parallel=2)
            if not (found := problems(again)):
                break
            # Late answers of a daemon on a busy machine: not knowing counts as in use.
            assert {problem.code for problem in found} == {Problems.IN_USE}, knob
    made.check_reported(again.gpus, knob)
    made.check_clients(knob)
    # A server ends by itself when its daemon is gone.
    await until(lambda: not made.rig.processes(SERVER, first))
