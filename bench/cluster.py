"""How soon a plan is answered in a cluster, from its annotation to the status annotation.

The agent in a process of its own on simulated GPUs; the test API server is in this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from bench.tables import percentile, show
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer

CHANGES = 60
SPACING = 1.05  # seconds between two pairs of changes
SOON = 0.3  # seconds from a change that is done to the second of its pair
LATENCIES = (0.0, 0.005)  # seconds; with the latter a bare watch and patch takes what it does
# on a real API server on a busy machine: 13 ms, p90 23 ms
LAYOUTS = ("{3g.40gb: 1, 1g.10gb: 3}", "{2g.20gb: 2, 1g.10gb: 3}")


def run() -> None:
    """A few minutes, most of them waiting between changes."""
    rows: list[list[object]] = []
    for latency in LATENCIES:
        for what, took in asyncio.run(_changes(latency)).items():
            figures = (percentile(took, 0.5), percentile(took, 0.9), max(took))
            rows.append([what, latency * 1000, *(seconds * 1000 for seconds in figures)])
    show(
        f"From a plan's annotation to the status annotation InSync, {CHANGES} changes of two GPUs",
        ["what", "latency, ms", "median, ms", "p90, ms", "slowest, ms"],
        rows,
    )


def plan(layout: str, number: int) -> str:
    """A plan for all GPUs, with a digest of its own."""
    return f"# {number}\nversion: v1\ngpus: [{{devices: all, mig: {layout}}}]\n"


@contextlib.asynccontextmanager
async def agent(url: str, boards: str) -> AsyncIterator[AgentProcess]:
    """An agent of this server's Node."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "kubeconfig").write_text(kubeconfig(url))
        async with AgentProcess(command(boards, folder), folder) as running:
            yield running


async def ask(api: ApiServer, text: str) -> float:
    """Ask for a plan and await it; how many seconds that took."""
    begin = asyncio.get_running_loop().time()
    api.annotate(NAME, **{PLAN: text})
    await until_status(api, in_sync(text))
    return asyncio.get_running_loop().time() - begin


async def quiet(api: ApiServer, seconds: float) -> None:
    """Wait until the Node was not written for so long."""
    clock = asyncio.get_running_loop().time
    while (left := _last_write(api) + seconds - clock()) > 0:  # noqa: ASYNC110 - for time
        await asyncio.sleep(left)


def _last_write(api: ApiServer) -> float:
    writes = (r.time for r in api.requests if r.write and "/nodes/" in r.path)
    return max(writes, default=0.0)


async def _changes(latency: float) -> dict[str, list[float]]:
    """Seconds for each change; both GPUs lose an instance or two and get others."""
    took: dict[str, list[float]] = {
        "a watch and a patch alone": await _bare(latency),
        "a change after a quiet time": [],
        "a second one within a second": [],
    }
    _, first, second = took.values()
    async with ApiServer(latency=latency) as api:
        api.add_node(NAME)
        async with agent(api.url, "h100-80gb:2"):
            await ask(api, plan(LAYOUTS[1], -1))
            for number in range(CHANGES):
                await quiet(api, SPACING)
                first.append(await ask(api, plan(LAYOUTS[0], 2 * number)))
                await asyncio.sleep(SOON)
                second.append(await ask(api, plan(LAYOUTS[1], 2 * number + 1)))
    return took


async def _bare(latency: float) -> list[float]:
    """Seconds for a client that copies an annotation as soon as its watch brings it."""
    took = []
    clock = asyncio.get_running_loop().time
    async with ApiServer(latency=latency) as api, aiohttp.ClientSession(api.url) as session:
        api.add_node(NAME)
        nodes, headers = "/api/v1/nodes", {"Content-Type": "application/merge-patch+json"}
        watch = {"watch": "true", "resourceVersion": str(api.store.version)}
        async with session.get(nodes, params=watch) as response:
            for number in range(CHANGES):
                begin = clock()
                api.annotate(NAME, asked=str(number))
                await response.content.readline()
                patch = {"metadata": {"annotations": {"answered": str(number)}}}
                path = f"{nodes}/{NAME}"
                async with session.patch(path, json=patch, headers=headers) as answer:
                    await answer.read()
                took.append(clock() - begin)
                await response.content.readline()  # what it wrote itself
    return took
