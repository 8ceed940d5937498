"""What clients of the API cost a reconciliation: none, and 200 slow ones beside 500 requests/s.

The clients are one process that does nothing but send and receive, since it shares the machine's
cores with the agent. What it costs all the same, with the kernel, is seen beside a second agent
that is asked in the place of the first; what the agent itself spends is its processor time.
"""

from __future__ import annotations

import http.client
import multiprocessing
import socket
import time
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from statistics import median
from typing import Self

from bench.agent import Running
from bench.processes import cpu_seconds
from bench.tables import show

PAIRS = 12  # reconciliations without clients and with them, one after the other
SLOW = 200  # clients that send a byte of a plan every two seconds
RATE = 500  # requests for /v1/status a second
CONNECTIONS = 20  # that they come over
WARM_UP = 2.0  # seconds between the first client and what is measured
GPUS = 8
LAYOUTS = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 1}", "{1g.10gb: 7}")
TURNS = 5  # from one layout to the other and back, for each of them


@dataclass
class _Measured:
    """Of each series of reconciliations the mean seconds of one, the agent's seconds of processor
    time in it, and the clients' requests a second and cores.
    """

    seconds: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)

    def add(self, agent: Running, clients: _Clients | None = None) -> None:
        before, began = cpu_seconds(agent.process.pid), time.perf_counter()
        answered, busy = (clients.answered, clients.busy) if clients else (0, 0.0)
        self.seconds.append(_recut(agent))
        self.spent.append((cpu_seconds(agent.process.pid) - before) / len(LAYOUTS * TURNS))
        if clients:
            passed = time.perf_counter() - began
            self.rates.append((clients.answered - answered) / passed)
            self.cores.append((clients.busy - busy) / passed)


def run() -> None:
    """Recut h100-80gb:8 again and again, with and without clients, and compare."""
    quiet, beside, loaded = _Measured(), _Measured(), _Measured()
    with closing(Running()) as agent, closing(Running()) as other:
        agent.wait_until_in_sync()
        other.wait_until_in_sync()
        for _ in range(PAIRS):
            quiet.add(agent)
            with _Clients(other.port) as clients:
                beside.add(agent, clients)
            with _Clients(agent.port) as clients:
                loaded.add(agent, clients)
    show(
        f"Reconciling h100-80gb:8 beside {SLOW} slow clients and {RATE} requests/s on /v1/status",
        ["figure", "value"],
        [
            ["one reconciliation without clients, median s", median(quiet.seconds)],
            ["the same with them, median s", median(loaded.seconds)],
            ["the same beside another agent that has them, median s", median(beside.seconds)],
            ["how much longer with them, median of pairs, %", _more(quiet, loaded)],
            ["how much longer than beside the other agent, %", _more(beside, loaded)],
            ["processor time of the agent in one without, median s", median(quiet.spent)],
            ["the same with clients, median s", median(loaded.spent)],
            ["requests answered a second, median", median(loaded.rates)],
            ["CPU of the clients, median cores", median(loaded.cores)],
        ],
    )


def _more(without: _Measured, with_clients: _Measured) -> float:
    pairs = zip(without.seconds, with_clients.seconds, strict=True)
    return 100 * median(b / a - 1 for a, b in pairs)


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
        self._server = ("127.0.0.1", port)
        self._over: Event = multiprocessing.Event()
        self._answered = multiprocessing.Value("q", 0)

    def __enter__(self) -> Self:
        self._process = multiprocessing.Process(target=self._ask)
        self._process.start()
        time.sleep(WARM_UP)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._process.join()

    @property
    def answered(self) -> int:
        return int(self._answered.value)

    @property
    def busy(self) -> float:
        """Seconds of processor time that they took."""
        return cpu_seconds(self._process.pid or 0)

    def _ask(self) -> None:
        """Each client in turn: the fast ones every 40 ms, the slow ones every two seconds."""
        fast = [_Fast(self._server) for _ in range(CONNECTIONS)]
        slow = [_Slow(self._server) for _ in range(SLOW)]
        sent, began = 0, time.perf_counter()
        while not self._over.is_set():
            time.sleep(max(0.0, began + sent / RATE - time.perf_counter()))
            self._answered.value += fast[sent % CONNECTIONS].ask()
            sent += 1
            if sent % (RATE * 2 // SLOW) == 0:
                slow[sent // (RATE * 2 // SLOW) % SLOW].send()


class _Fast:
    """Asks for the status again and again over one connection."""

    _REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def __init__(self, server: tuple[str, int]) -> None:
        self._own = socket.create_connection(server)
        self._own.sendall(self._REQUEST)

    def ask(self) -> int:
        """Read the answer to the last request, which is there by now, and ask again; 1."""
        found = self._received()
        while b"\r\n\r\n" not in found:
            found += self._received()
        head, _, body = found.partition(b"\r\n\r\n")
        left = int(head.split(b"Content-Length: ")[1].split()[0]) - len(body)
        while left:
            left -= len(self._received())
        self._own.sendall(self._REQUEST)
        return 1

    def _received(self) -> bytes:
        data = self._own.recv(1 << 20)
        if not data:
            raise ConnectionError("the agent ended the connection of a client that is not slow")
        return data


class _Slow:
    """Sends a plan byte by byte; each time that the agent gives up on it, from the beginning."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._own: socket.socket | None = None

    def send(self) -> None:
        if self._own is None:
            self._own = socket.create_connection(self._server)
            head = b"POST /v1/plan/preview HTTP/1.1\r\nHost: localhost\r\n"
            self._own.sendall(head + b"Content-Length: 60000\r\n\r\n")
            return
        try:
            self._own.sendall(b"a")
        except OSError:
            self._own.close()
            self._own = None
