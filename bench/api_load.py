"""What clients of the API cost a reconciliation: none, and 200 slow ones beside 500 requests/s.

The clients take processor time themselves. What that costs is seen beside a second agent that is
asked in the place of the first.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from statistics import median
from typing import Self

from bench.agent import Running
from bench.processes import cpu_seconds
from bench.tables import show

PAIRS = 6  # reconciliations without clients and with them, one after the other
SLOW = 200  # clients that send a byte of a plan every two seconds
RATE = 500  # requests for /v1/status a second
CONNECTIONS = 20  # that they come over
WARM_UP = 2.0  # seconds between the first client and what is measured
GPUS = 8
LAYOUTS = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 1}", "{1g.10gb: 7}")
TURNS = 5  # from one layout to the other and back, for each of them


def run() -> None:
    """Recut h100-80gb:8 again and again, with and without clients, and compare."""
    agent, other = Running(), Running()
    try:
        agent.wait_until_in_sync()
        other.wait_until_in_sync()
        quiet, beside, loaded, rates, cores = [], [], [], [], []
        for _ in range(PAIRS):
            quiet.append(_recut(agent))
            with _Clients(other.port):
                beside.append(_recut(agent))
            with _Clients(agent.port) as clients:
                before, began = cpu_seconds(agent.process.pid), time.perf_counter()
                answered = clients.answered
                loaded.append(_recut(agent))
                passed = time.perf_counter() - began
                rates.append((clients.answered - answered) / passed)
                cores.append((cpu_seconds(agent.process.pid) - before) / passed)
    finally:
        agent.stop()
        other.stop()
    show(
        f"Reconciling h100-80gb:8 beside {SLOW} slow clients and {RATE} requests/s on /v1/status",
        ["figure", "value"],
        [
            ["one reconciliation without clients, median s", median(quiet)],
            ["the same with them, median s", median(loaded)],
            ["the same beside another agent that has them, median s", median(beside)],
            ["how much longer with them, median of pairs, %", _longer(quiet, loaded)],
            ["how much longer than beside the other agent, %", _longer(beside, loaded)],
            ["requests answered a second, median", median(rates)],
            ["CPU of the agent with clients, median cores", median(cores)],
        ],
    )


def _longer(without: list[float], with_clients: list[float]) -> float:
    return 100 * median(b / a - 1 for a, b in zip(without, with_clients, strict=True))


def _recut(agent: Running) -> float:
    """Mean seconds from a change of the plan file until all GPUs have the other layout."""
    stream = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=60)
    try:
        stream.request("GET", "/v1/events", headers={"Accept": "text/event-stream"})
        answer = stream.getresponse()
        answer.readline()  # from here on every event arrives
        began = time.perf_counter()
        for layout in LAYOUTS * TURNS:
            agent.plan(f"version: v1\ngpus:\n- devices: all\n  mig: {layout}\n")
            applied = 0
            while applied < GPUS:
                applied += b'"type": "Applied"' in answer.readline()
        return (time.perf_counter() - began) / len(LAYOUTS * TURNS)
    finally:
        stream.close()


class _Clients:
    """Clients in a process of their own while the block lasts; `answered` counts the fast ones'."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over: Event = multiprocessing.Event()
        self._answered = multiprocessing.Value("q", 0)

    def __enter__(self) -> Self:
        self._process = multiprocessing.Process(target=lambda: asyncio.run(self._ask()))
        self._process.start()
        time.sleep(WARM_UP)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._process.join()

    @property
    def answered(self) -> int:
        return int(self._answered.value)

    async def _ask(self) -> None:
        tasks = [asyncio.create_task(self._slow()) for _ in range(SLOW)]
        tasks += [asyncio.create_task(self._fast(n / RATE)) for n in range(CONNECTIONS)]
        while not self._over.is_set():  # noqa: ASYNC110 - it is set by another process
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _slow(self) -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(b"POST /v1/plan/preview HTTP/1.1\r\nHost: localhost\r\n")
                writer.write(b"Content-Length: 60000\r\n\r\n")
                try:
                    while True:
                        writer.write(b"a")
                        await writer.drain()
                        await asyncio.sleep(2)
                finally:
                    writer.close()
            await asyncio.sleep(2)

    async def _fast(self, offset: float) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + offset
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    while True:
                        await asyncio.sleep(due - clock())
                        due = max(due + CONNECTIONS / RATE, clock() - 1)
                        writer.write(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        head = await reader.readuntil(b"\r\n\r\n")
                        await reader.readexactly(int(head.split(b"Content-Length: ")[1].split()[0]))
                        self._answered.value += 1
                finally:
                    writer.close()
