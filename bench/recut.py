"""One GPU cut anew at what calls cost on hardware: what is not the changes themselves.

Reads take 1 ms, a GPU instance 150 ms and a compute instance 50 ms to create or destroy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from bench.side_by_side import AFTER, BEFORE, make
from bench.tables import show
from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import ObservedNode
from nodeagent.simulation import SimulatedNode, simulated

READ, GPU_INSTANCE, COMPUTE_INSTANCE = 0.001, 0.15, 0.05  # seconds
COSTS = {
    "*": READ,
    "nvmlDeviceCreateGpuInstanceWithPlacement": GPU_INSTANCE,
    "nvmlGpuInstanceDestroy": GPU_INSTANCE,
    "nvmlGpuInstanceCreateComputeInstance": COMPUTE_INSTANCE,
    "nvmlComputeInstanceDestroy": COMPUTE_INSTANCE,
}


def run() -> None:
    """7x 1g.10gb to 3g + 2g + 1g + 1g, in a fresh process and in one that runs."""
    rows: list[list[object]] = []
    counts: list[Counter[str]] = []
    for words, warm in (("fresh", False), ("running", True)):
        seconds, calls = asyncio.run(_change(warm=warm))
        changes = sum(COSTS[name] * count for name, count in calls.items() if name in COSTS)
        rows.append([words, seconds, changes, seconds / changes, calls.total()])
        counts.append(calls)
    show(
        "7x1g.10gb to 3g+2g+1g+1g; reads 1 ms, GPU instance 150 ms, compute instance 50 ms",
        ["process", "seconds", "of it changes", "times the changes", "driver calls"],
        rows,
    )
    names = sorted(counts[0] | counts[1], key=lambda name: (-counts[0][name], name))
    show(
        "the calls by function",
        ["function", "fresh", "running"],
        [[name, *(count[name] for count in counts)] for name in names],
    )


async def _change(*, warm: bool) -> tuple[float, Counter[str]]:
    """Seconds from the look before to the layout read back, and the calls by function."""
    with simulated("h100-80gb:1", latency=COSTS) as node:
        driver = Driver(observe_deadline=60, step_deadline=60)
        async with driver:
            for layout in (BEFORE, AFTER, BEFORE):
                await make(driver, layout)
                await driver.observe()
            if warm:
                return await _timed(driver, node)
        async with driver:
            driver.details = None  # as `nodeagent apply` does
            return await _timed(driver, node)


async def _timed(driver: Driver, node: SimulatedNode) -> tuple[float, Counter[str]]:
    node.journal.clear()
    began = time.perf_counter()
    observed: ObservedNode = await driver.observe()
    await make(driver, AFTER, observed)
    return time.perf_counter() - began, Counter(node.journal.counts)
