"""Plans with MPS while the driver fails.

Whatever fails: a client's daemon goes on under its pid, what is said is what is so, and the next
round reaches the plan.
"""

from __future__ import annotations

import os

import pytest

from nodeagent.errors import DriverError
from nodeagent.simulation import Code
from tests.acceptance.mps_bench import Bench, bench, problems

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
