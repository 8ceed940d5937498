"""A fleet that loses its API server, and how it comes back: 200 followers in one process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from pathlib import Path

from bench.tables import show
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.node import KeptNode
from tests.simulated_cluster.agent import kubeconfig
from tests.simulated_cluster.api_server import ApiServer

FLEET = 200
TOGETHER = 20  # followers share a client, because each client costs 20 ms to build
AWAY = (1.0, 10.0, 60.0)  # seconds without the server


def run() -> None:
    """Two minutes: a restart, a longer one, and one after which all waits have grown."""
    rows = []
    for away in AWAY:
        times = asyncio.run(_times(away))
        tenths = Counter(int(time * 10) for time in times)
        half = times[len(times) // 2]
        rows.append([f"{away:.0f} s", len(times), half, times[-1], max(tenths.values())])
    show(
        f"{FLEET} followers after their server is back with an empty cache",
        ["gone for", "requests", "half of them by, s", "all by, s", "most in 0.1 s"],
        rows,
    )


async def _times(away: float) -> list[float]:
    """When requests came, in seconds after the server's return, until all follow again."""
    chance = random.Random(4).random  # noqa: S311 - nothing secret
    clock = asyncio.get_running_loop().time
    async with ApiServer() as api, contextlib.AsyncExitStack() as stack:
        tasks: list[asyncio.Task[None]] = []
        with tempfile.TemporaryDirectory() as directory:
            config = Path(directory) / "kubeconfig"
            config.write_text(kubeconfig(api.url))
            for _ in range(FLEET // TOGETHER):
                access = await stack.enter_async_context(ClusterAccess(Kubeconfig(config)))
                for _ in range(TOGETHER):
                    name = f"n{len(tasks)}"
                    api.add_node(name)
                    follower = KeptNode(access, name, on_view=lambda _: None, jitter=chance)
                    tasks.append(asyncio.create_task(follower.run()))
            await _all_watch(api)
            await api.stop()
            await asyncio.sleep(away)
            del api.requests[:]
            begin = clock()
            await api.restart()
            await _all_watch(api)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sorted(request.time - begin for request in api.requests)


async def _all_watch(api: ApiServer) -> None:
    async with asyncio.timeout(120):
        while len(api.faults.watching) < FLEET:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
