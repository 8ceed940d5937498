"""Eight GPUs against one, when every driver call takes 50 ms."""

from __future__ import annotations

import asyncio
import time

import pynvml

from bench.tables import show
from nodeagent.execution import carry_out
from nodeagent.gpu.driver import Driver
from nodeagent.planning.desired import DesiredNode
from nodeagent.planning.planner import plan
from nodeagent.simulation import simulated
from tests.planning.cards import card, present, wanted

CALL = 0.05  # seconds
BEFORE = (("1g.10gb", 7),)
AFTER = (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2))


def run() -> None:
    """7x 1g.10gb to 3g + 2g + 1g + 1g, planning and reading back included."""
    one, calls, _ = asyncio.run(_change(1))
    rows = [[1, one, 1.0, calls]]
    for gpus in (2, 4, 8):
        seconds, calls, _ = asyncio.run(_change(gpus))
        rows.append([gpus, seconds, seconds / one, calls])
    show(
        f"7x1g.10gb to 3g+2g+1g+1g at {CALL * 1000:.0f} ms a driver call",
        ["GPUs", "seconds", "times one GPU", "driver calls"],
        rows,
    )


async def _change(gpus: int) -> tuple[float, int, int]:
    """Seconds, driver calls, and driver calls of the changing steps alone."""
    empty = card("h100-80gb")
    with simulated(f"h100-80gb:{gpus}") as node:
        async with Driver(observe_deadline=60, step_deadline=60) as driver:
            observed = await driver.observe()
            for layout in (BEFORE, AFTER):
                desired = DesiredNode({g.uuid: wanted(empty, layout) for g in observed.gpus})
                if layout is AFTER:
                    node.inject(delay=CALL, times=None)
                node.journal.clear()
                began = time.perf_counter()
                outcome = await carry_out(plan(desired, observed), driver, parallel=8)
                seconds = time.perf_counter() - began
                observed = await driver.observe() if layout is BEFORE else observed
            node.clear_faults()
            if any(present(gpu.after) != dict(AFTER) for gpu in outcome.gpus):
                raise RuntimeError("the layout was not reached")
            calls = node.journal.total()
    return seconds, calls, gpus
