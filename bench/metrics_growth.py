"""`python -m bench.metrics_growth SAMPLES`: resident memory while layouts change all the time."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time

from bench.processes import resident
from nodeagent.gpu.driver import Driver
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.selection import default_selection
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import simulated
from nodeagent.telemetry.exporter import Exporter
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.views.node_state import NodeState
from tests.plan.cards import Multiset, card, wanted

LAYOUTS: tuple[Multiset, ...] = (
    (("1g.10gb", 7),),
    (("3g.40gb", 1), ("1g.10gb", 4)),
    (("2g.20gb", 3),),
    (("3g.40gb", 2),),
)
INTERVAL = 10  # samples between two changes
REPORTS = 10  # how often memory is reported


async def _grow(samples: int) -> list[tuple[int, int, int]]:
    """Samples so far, bytes, changes so far."""
    found = []
    with simulated("h100-80gb:2"):
        async with Driver(observe_deadline=60, step_deadline=60) as driver:
            here = _Here(driver)
            for number in range(samples + 1):
                if number % (samples // REPORTS) == 0:
                    gc.collect()
                    found.append((number, resident(os.getpid()), here.changes))
                if number % INTERVAL == 0:
                    await here.change()
                await here.sample()
    return found


class _Here:
    """A node that is sampled and exported."""

    def __init__(self, driver: Driver) -> None:
        self.changes = 0
        self._driver = driver
        self._observed = ObservedNode()
        selection = default_selection()
        self._sampler = Sampler(
            driver, selection.fields, selection.texts, intervals=Intervals(0.001, 0.001, 60, 60)
        )
        self._exporter = Exporter(
            selection,
            host=(("Hostname", "node"),),
            build=AgentSample("nodeagent_build_info", 1, ("0", "0")),
            clock=time.monotonic,
            current=lambda: NodeState("node", "file", observed=self._observed),
        )

    async def change(self) -> None:
        observed = await self._driver.observe()
        layout = LAYOUTS[self.changes % len(LAYOUTS)]
        empty = card("h100-80gb")
        desired = DesiredNode({gpu.uuid: wanted(empty, layout) for gpu in observed.gpus})
        began = time.monotonic()
        outcome = await execute(plan(desired, observed), self._driver, parallel=2)
        self._exporter.work.add_round(outcome, time.monotonic() - began)
        self._observed = await self._driver.observe()
        self._exporter.changed()
        self.changes += 1

    async def sample(self) -> None:
        found = await self._sampler.round()
        self._exporter.take(found)
        self._exporter.scrape(True)


if __name__ == "__main__":
    json.dump(asyncio.run(_grow(int(sys.argv[1]))), sys.stdout)
