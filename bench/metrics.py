"""Metrics of a full node: how long a scrape takes, what sampling costs, whether memory grows."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bench.agent import Running
from bench.processes import cpu_seconds, resident
from bench.tables import percentile, show
from nodeagent.app.use_service import FILE_NAME
from nodeagent.metrics.catalogue import Level, Tier, catalogue
from nodeagent.metrics.selection import default_selection, default_text
from tests.use.full_node import keep

SCRAPES = 300
WATCHED = 30.0  # seconds
MORE = 40  # fields beside the default ones, half of them of instances
SAMPLES = 10_000


def run() -> None:
    """h100-80gb:8 with 56 instances, a sample each second, the default fields and 40 more; with
    records of 500 workloads.
    """
    with tempfile.TemporaryDirectory() as folder:
        counters = Path(folder) / "counters.csv"
        counters.write_text(_counters())
        rows = _scraped(counters)
        seldom = _cost(counters, interval=3600)
        often = _cost(counters, interval=1)
    rows += [
        ["CPU of the agent, a sample each second, % of a core", often * 100, ""],
        ["of it for the sampling, % of a core", (often - seldom) * 100, "3"],
    ]
    show(
        f"Metrics of h100-80gb:8 with 56 instances, the default fields and {MORE} more",
        ["figure", "value", "at most"],
        rows,
    )
    _growth()


def _counters() -> str:
    """The shipped file, and more fields that change fast: of instances first, then of GPUs."""
    there = {metric.field.id for metric in default_selection().metrics}
    left = [
        row
        for row in catalogue().fields
        if row.id not in there and row.level is not Level.LINK and row.tier is Tier.FAST
    ]
    parts = [row for row in left if row.part is not None][: MORE // 2]
    wholes = [row for row in left if row.part is None][: MORE - len(parts)]
    lines = [f"{r.name}, {r.type}, {r.help.replace(',', ';')}" for r in (*parts, *wholes)]
    return "\n".join([default_text(), *lines, ""])


# --- scrapes --------------------------------------------------------------------------------------


def _scraped(counters: Path) -> list[list[object]]:
    with closing(_agent(counters, interval=1)) as agent:
        plain = _scrapes(agent, "identity")
        zipped = _scrapes(agent, "gzip")
        text = _text(agent)
        memory = resident(agent.process.pid)
    series = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
    return [
        ["series", series, ""],
        ["a scrape, KiB", len(text) / 1024, ""],
        ["scrape, median ms", percentile(plain, 0.5) * 1000, "8"],
        ["scrape, 99 % ms", percentile(plain, 0.99) * 1000, "20"],
        ["scrape with gzip, median ms", percentile(zipped, 0.5) * 1000, "8"],
        ["scrape with gzip, 99 % ms", percentile(zipped, 0.99) * 1000, "20"],
        ["resident memory, MiB", memory / 2**20, ""],
    ]


def _agent(counters: Path, *, interval: float) -> Running:
    agent = Running(
        prepare=lambda state: keep(state / FILE_NAME),
        NODEAGENT_SAMPLE_INTERVAL=str(interval),
        NODEAGENT_METRICS_COUNTERS=str(counters),
    )
    agent.wait_until_in_sync()
    time.sleep(3)
    return agent


def _scrapes(agent: Running, encoding: str) -> list[float]:
    """Seconds of each, at moments that follow no pattern: some meet a sample under way."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    random.seed(5)
    took = []
    for _ in range(SCRAPES):
        time.sleep(random.uniform(0.01, 0.09))  # noqa: S311 - nothing secret
        began = time.perf_counter()
        connection.request("GET", "/metrics", headers={"Accept-Encoding": encoding})
        connection.getresponse().read()
        took.append(time.perf_counter() - began)
    connection.close()
    return took


def _text(agent: Running) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    connection.request("GET", "/metrics")
    return connection.getresponse().read()


def _cost(counters: Path, *, interval: float) -> float:
    """The share of a core that the agent uses while it is scraped every 15 s."""
    with closing(_agent(counters, interval=interval)) as agent:
        _text(agent)
        before, began = cpu_seconds(agent.process.pid), time.monotonic()
        while time.monotonic() - began < WATCHED:
            time.sleep(15)
            _text(agent)
        return (cpu_seconds(agent.process.pid) - before) / (time.monotonic() - began)


# --- memory ---------------------------------------------------------------------------------------


def _growth() -> None:
    """In a process of its own, because this one has held much already."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.metrics_growth", str(SAMPLES)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [[n, size / 2**20, changes] for n, size, changes in json.loads(done.stdout)]
    show(
        "Memory over samples of h100-80gb:2, with a change of layout every ten of them",
        ["samples", "resident MiB", "changes"],
        rows,
    )
