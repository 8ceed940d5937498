"""How soon a plan is answered in a cluster, from its annotation to the status annotation.

The agent in a process of its own on simulated GPUs; the test API server is in this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

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

CHANGES = 200
SPACING = 1.05  # seconds; the agent writes once a second
LAYOUTS = ("{3g.40gb: 1, 1g.10gb: 3}", "{2g.20gb: 2, 1g.10gb: 3}")


def run() -> None:
    """A few minutes, because changes that follow each other sooner wait for their turn."""
    took = [seconds * 1000 for seconds in asyncio.run(_changes())]
    show(
        f"From a plan's annotation to the status annotation InSync, {CHANGES} changes of two GPUs",
        ["figure", "ms"],
        [
            ["median", percentile(took, 0.5)],
            ["p90", percentile(took, 0.9)],
            ["slowest", max(took)],
        ],
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


async def _changes() -> list[float]:
    """Seconds for each change; both GPUs lose an instance or two and get others."""
    took = []
    async with ApiServer() as api:
        api.add_node(NAME)
        async with agent(api.url, "h100-80gb:2"):
            await ask(api, plan(LAYOUTS[1], -1))
            for number in range(CHANGES):
                await quiet(api, SPACING)
                took.append(await ask(api, plan(LAYOUTS[number % 2], number)))
    return took
