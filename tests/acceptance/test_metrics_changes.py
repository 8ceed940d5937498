"""Scrapes while layouts change: never empty, never of a slice that was gone, never backwards."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.plan.plan import NodeOutcome
from nodeagent.plan.steps import SetMigMode, Step
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import NodeState, Phase
from tests.acceptance.metrics_rig import Watched, running
from tests.machine_load import stretched
from tests.rig import Rig, open_driver
from tests.rig import running as reconciling

LAYOUTS = ("{1g.10gb: 7}", "{3g.40gb: 1, 1g.10gb: 4}", "{2g.20gb: 3, 1g.10gb: 1}", "{3g.40gb: 2}")


@dataclass(slots=True)
class _Life:
    """When an instance was there, from `born` to `died` (monotonic)."""

    gpu: str
    id: int
    born: float
    died: float = float("inf")


class Truth:
    """Which instances there were when, as the simulated cards had them after each step."""

    def __init__(self, node: SimulatedNode, driver: Driver) -> None:
        self._node = node
        self._there: dict[tuple[str, int, int], _Life] = {}
        self.lives: list[_Life] = []
        driver.applied.subscribe(self._look)

    def _look(self, _: Step | None) -> None:
        now = time.monotonic()
        found = {
            (card.identity.uuid, instance.id, instance.serial)
            for card in self._node.cards
            for instance in card.state.instances
        }
        for key in [key for key in self._there if key not in found]:
            self._there.pop(key).died = now
        for key in found - self._there.keys():
            life = self._there[key] = _Life(key[0], key[1], now)
            self.lives.append(life)

    def was_there(self, gpu: str, number: int, since: float) -> bool:
        """Whether an instance of this id was there at any time since then."""
        return any(
            life.gpu == gpu and life.id == number and life.died >= since for life in self.lives
        )


def _rig(folder: Path, driver: Driver, watched: list[Watched]) -> Rig:
    def published(_: NodeState) -> None:
        for one in watched:
            one.part.exporter.changed()

    def round_over(outcome: NodeOutcome | None, seconds: float) -> None:
        for one in watched:
            one.part.exporter.work.add_round(outcome, seconds)

    return Rig(folder, driver=driver, on_state=published, on_round=round_over)


class Scraper:
    """Scrapes again and again, and notes what is wrong with a scrape."""

    def __init__(self, watched: Watched, truth: Truth) -> None:
        self.count = 0
        self.wrong: list[str] = []
        self._watched = watched
        self._truth = truth
        self._counters: dict[str, float] = {}

    async def run(self, times: int) -> None:
        for number in range(times):
            asked = time.monotonic()
            zipped = self._watched.part.scrape(bool(number % 2))
            text = (gzip.decompress(zipped) if number % 2 else zipped).decode()
            self.count += 1
            self._check(text, asked)
            await asyncio.sleep(0.004)

    def _check(self, text: str, asked: float) -> None:
        # Read line by line: Prometheus' parser takes ten times as long, and proves no more here.
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        gpus = sum(1 for key, _, _ in lines if key.startswith("DCGM_FI_DEV_POWER_USAGE{"))
        if gpus != 2:
            self.wrong.append(f"scrape {self.count} has the power of {gpus} GPUs")
        values = {key: float(value) for key, _, value in lines}
        for gpu, number in set(_INSTANCE.findall(text)):
            age, took = (_of_reader(values, name, gpu) for name in (_AGE, _DURATION))
            # A look reads which instances there are after it began, so earlier is too early.
            if not self._truth.was_there(gpu, int(number), asked - age - took):
                self.wrong.append(f"scrape {self.count} reports {gpu} {number}, which was gone")
        counted = _counters(text)
        for key, value in values.items():
            if key.partition("{")[0] in counted:
                if value < self._counters.get(key, 0.0):
                    self.wrong.append(f"scrape {self.count}: {key} went back to {value}")
                self._counters[key] = value


_INSTANCE = re.compile(r'UUID="([^"]+)".*GPU_I_ID="([0-9]+)"')
_AGE, _DURATION = "nodeagent_sample_age_seconds", "nodeagent_reader_duration_seconds"


def _of_reader(values: Mapping[str, float], name: str, gpu: str) -> float:
    begins, ends = f'{name}{{reader="fast",', f'UUID="{gpu}"}}'
    return next(v for key, v in values.items() if key.startswith(begins) and key.endswith(ends))


def _counters(text: str) -> set[str]:
    def names() -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                if kind == "counter" and name != "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL":
                    yield name  # that one is a rate, whatever dcgm-exporter calls it
                if kind == "histogram":
                    yield from (f"{name}_count", f"{name}_sum")

    return set(names())


@pytest.mark.parametrize(
    ("scrapes", "changes"), [(30, 6), pytest.param(500, 100, marks=pytest.mark.full)]
)
async def test_scrapes_during_changes(tmp_path: Path, scrapes: int, changes: int) -> None:
    """So many scrapes while so many plans come into force, one after the other."""
    with simulated("h100-80gb:2") as node:
        driver = open_driver()
        watching: list[Watched] = []
        rig = _rig(tmp_path, driver, watching)
        rig.offer(LAYOUTS[0])
        async with reconciling(rig):
            await asyncio.wait_for(rig.control.settled.wait(), stretched(60))
            truth = Truth(node, driver)
            watched = Watched(driver, current=lambda: rig.state)
            watching.append(watched)
            async with running(watched):
                await watched.sampled(2)
                scraper = Scraper(watched, truth)
                truth._look(SetMigMode("", True, ""))
                scraping = asyncio.create_task(scraper.run(scrapes))
                applied = 0
                while applied < changes or not scraping.done():
                    applied += 1
                    await _apply(rig, LAYOUTS[applied % len(LAYOUTS)])
                await scraping
            assert scraper.count == scrapes
            assert applied >= changes
            assert not scraper.wrong, scraper.wrong[:5]
            assert len(truth.lives) > changes  # else nothing was tried


async def _apply(rig: Rig, layout: str) -> None:
    await rig.rest()
    before = rig.state.rounds
    rig.offer(layout)
    async with asyncio.timeout(stretched(60)):
        while rig.state.rounds == before or rig.state.phase is not Phase.IN_SYNC:
            await asyncio.sleep(0.001)
