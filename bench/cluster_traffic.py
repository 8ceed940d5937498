"""What one agent asks of the API server and how many bytes that is; what it costs on its node.

Bytes are those of HTTP with its headers, without TLS, as a relay before the server counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator

from bench.cluster import LAYOUTS, agent, ask, plan, quiet
from bench.processes import cpu_seconds
from bench.tables import show
from tests.simulated_cluster.agent import NAME
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

BOARDS = "h100-80gb:8"
FULL = "{1g.10gb: 7}"  # 56 instances
QUIET = 1200.0  # seconds: one or two watches
HEARTBEATS = 5
CHANGES = 10
IMAGES = 50  # a kubelet lists so many in its Node's status
PODS, POD_SIZE = 30, 6 * 1024  # how many are on the node, and bytes of JSON each


def run() -> None:
    """Twenty-one minutes, nearly all of them without a change."""
    asyncio.run(_measure())


async def _measure() -> None:
    rows: list[list[object]] = []
    async with ApiServer() as api:
        api.add_node(NAME)
        _like_a_real_node(api)
        meter = _Meter(api)
        async with meter.running() as url, agent(url, BOARDS) as process:
            async with meter.row(rows, "the start, with 56 instances to make"):
                await ask(api, plan(FULL, 0))
                await quiet(api, 10.0)
            spent = cpu_seconds(process.pid)
            async with meter.row(rows, f"{QUIET:.0f} s without a change"):
                await asyncio.sleep(QUIET)
            share = (cpu_seconds(process.pid) - spent) / QUIET
            memory = process.resident
            async with meter.row(rows, "one plan after that, a change of all 8 GPUs"):
                await ask(api, plan(LAYOUTS[1], -1))
                await quiet(api, 10.0)
            async with meter.row(rows, f"{HEARTBEATS} heartbeats of the kubelet"):
                for number in range(HEARTBEATS):
                    api.heartbeat(NAME, f"2026-01-01T00:00:{number:02}Z")
                    await asyncio.sleep(0.5)
            async with meter.row(rows, f"{CHANGES} plans soon after each other, likewise"):
                for number in range(CHANGES):
                    await ask(api, plan(LAYOUTS[number % 2], number))
                    await quiet(api, 3.0)
        node = len(json.dumps(api.node(NAME)))
        pods = len(json.dumps(api.store.all("pods")))
    header = [
        "what",
        "lists",
        "pods",
        "watches",
        "metadata",
        "status",
        "events",
        "KiB up",
        "KiB down",
    ]
    show("Requests of one agent, and bytes between it and the API server", header, rows)
    show(
        "The same agent, on h100-80gb:8 with 56 instances",
        ["figure", "value"],
        [
            ["resident memory in the cluster, MiB", memory / 2**20],
            [f"CPU over the {QUIET:.0f} s without a change, % of a core", share * 100],
            ["the Node as JSON in the end, KiB", node / 1024],
            [f"the {PODS} pods on it as JSON, KiB", pods / 1024],
        ],
    )


def _like_a_real_node(api: ApiServer) -> None:
    """As big as in clusters, where most of a Node is the kubelet's list of images; with pods."""
    images = [
        {
            "names": [
                f"registry.example/team-{number}/image@sha256:{number:064x}",
                f"registry.example/team-{number}/image:v1.{number}.0",
            ],
            "sizeBytes": 100_000_000 + number,
        }
        for number in range(IMAGES)
    ]
    api.patch_node(NAME, {"status": {"images": images}})
    for number in range(PODS):
        environment = [{"name": "PADDING", "value": "x" * (POD_SIZE - 600)}]
        container = {"name": "main", "image": "none", "env": environment}
        api.add_pod(f"pod-{number}", node=NAME, spec={"containers": [container]})


class _Meter:
    """A relay before the server that counts what goes through it."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._went = Counter({"up": 0, "down": 0})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The address to take in the server's place."""
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    @contextlib.asynccontextmanager
    async def row(self, rows: list[list[object]], what: str) -> AsyncIterator[None]:
        """Add a row of what goes through within the block."""
        before, begun = self._went.copy(), len(self._api.requests)
        yield
        kinds = Counter(_kind(request) for request in self._api.requests[begun:])
        names = ("list", "pods", "watch", "metadata", "status", "event")
        counts = [kinds[name] for name in names]
        sizes = [(self._went[way] - before[way]) / 1024 for way in ("up", "down")]
        rows.append([what, *counts, *sizes])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._api.port)
        await asyncio.gather(self._pipe(reader, back, "up"), self._pipe(there, writer, "down"))

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self._went[way] += len(data)
                writer.write(data)
        writer.close()


def _kind(request: Request) -> str:
    if not request.write:
        plain = "pods" if request.path.endswith("/pods") else "list"
        return "watch" if request.watch else plain
    if "/events" in request.path:
        return "event"
    return "status" if request.path.endswith("/status") else "metadata"
