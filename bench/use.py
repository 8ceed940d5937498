"""Records of use and advice: what they cost with 56 slices and 500 workloads of two weeks."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
import urllib.request
from contextlib import closing

from bench.agent import Running
from bench.tables import percentile, show
from nodeagent.app.use_service import FILE_NAME
from nodeagent.use.advice import advise
from tests.use.full_node import LENGTH, NODES, full_accounts, keep, observe

SAMPLES = 500
WATCHED = 70.0  # seconds, in which the agent advises once


def run() -> None:
    """In this process the records alone, then agents on h100-80gb:8 with and without them."""
    tracemalloc.start()
    accounts = full_accounts()
    accounts.records.kept(0.0)  # as what was written last is kept
    advice = [advise(use, NODES[0].gpus) for use in accounts.records.uses()]
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    took, now = [], 1.96 * LENGTH
    for _ in range(SAMPLES):
        now += 1.0
        began = time.perf_counter()
        observe(accounts, NODES[0], now)
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    for use in accounts.records.uses():
        advise(use, NODES[0].gpus)
    advised = time.perf_counter() - began
    (with_them, cpu), (without, cpu_without) = _agent(full=True), _agent(full=False)
    show(
        f"Records of use: 56 slices, {len(advice)} workloads, two weeks",
        ["figure", "value", "at most"],
        [
            ["accounts, records and advice, MiB", traced / 2**20, "2"],
            ["resident memory of an agent with them, MiB more", (with_them - without) / 2**20, ""],
            ["CPU of an agent with them, % of a core more", (cpu - cpu_without) * 100, ""],
            ["to count a sample, median ms", percentile(took, 0.5) * 1000, ""],
            ["to advise all, ms", advised * 1000, ""],
        ],
    )


def _agent(*, full: bool) -> tuple[int, float]:
    """Resident bytes, and the share of a core used."""
    with closing(Running(prepare=lambda state: keep(state / FILE_NAME) if full else None)) as agent:
        cost = agent.idle(WATCHED)
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.port}/v1/advice") as answer:
            found = len(json.load(answer)["advice"])
        assert bool(found) is full  # noqa: S101 - else nothing was measured
        return cost
