"""Eight GPUs against one, when every driver call takes 50 ms."""

from __future__ import annotations

import asyncio
import time

from bench.tables import show
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import simulated
from tests.plan.cards import Multiset, card, present, wanted

CALL = 0.05  # seconds
BEFORE = (("1g.10gb", 7),)
AFTER = (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2))


def run() -> None:
    """7x 1g.10gb to 3g + 2g + 1g + 1g, from the plan to the layout read back."""
    one, calls = asyncio.run(_change(1))
    rows: list[list[object]] = [[1, one, 1.0, calls]]
    for gpus in (2, 4, 8):
        seconds, calls = asyncio.run(_change(gpus))
        rows.append([gpus, seconds, seconds / one, calls])
    show(
        f"7x1g.10gb to 3g+2g+1g+1g at {CALL * 1000:.0f} ms a driver call",
        ["GPUs", "seconds", "times one GPU", "driver calls"],
        rows,
    )


async def _change(gpus: int) -> tuple[float, int]:
    """Seconds, and driver calls of all GPUs together."""
    with simulated(f"h100-80gb:{gpus}") as node:
        async with Driver(observe_deadline=60, step_deadline=60) as driver:
            await make(driver, BEFORE)
            observed = await driver.observe()
            node.inject(delay=CALL, times=None)
            node.journal.clear()
            began = time.perf_counter()
            await make(driver, AFTER, observed)
            seconds = time.perf_counter() - began
            calls = node.journal.total()
            node.clear_faults()
    return seconds, calls


async def make(driver: Driver, layout: Multiset, observed: ObservedNode | None = None) -> None:
    """Observe (unless that was done), plan, carry out; raises when the layout is not reached."""
    observed = observed or await driver.observe()
    empty = card("h100-80gb")
    desired = DesiredNode({gpu.uuid: wanted(empty, layout) for gpu in observed.gpus})
    outcome = await execute(plan(desired, observed), driver, parallel=len(observed.gpus))
    if any(present(gpu.after) != dict(layout) for gpu in outcome.gpus):
        raise RuntimeError("the layout was not reached")
