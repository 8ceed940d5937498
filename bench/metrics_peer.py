"""`python -m bench.metrics_peer --nvitop COMMAND`: this agent and nvitop-exporter on the same GPUs.

Both run beside each other on the node's own libnvidia-ml.so.1. The agent has no plan, so it touches
nothing. `COMMAND` is the nvitop-exporter of an environment of its own (pip install
nvitop-exporter); nothing of it is needed here.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass

from bench.processes import cpu_seconds, resident
from bench.tables import percentile, show

SCRAPES = 200
WATCHED = 60.0  # seconds
STARTED = 60.0  # seconds that either may take


@dataclass(frozen=True, slots=True)
class Peer:
    """An exporter that runs."""

    name: str
    pid: int
    port: int


def main() -> int:
    """Print the table; 1 where there is no driver."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nvitop", default="nvitop-exporter", help="the command to compare with")
    given = parser.parse_args()
    try:
        CDLL("libnvidia-ml.so.1")
    except OSError as error:
        print(f"there is no NVIDIA driver on this machine: {error}", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        _agent(folder) as own,
        _nvitop(given.nvitop) as other,
    ):
        rows = [_row(peer) for peer in (own, other)]
    show(
        f"Exporters on the same GPUs, a sample each second, {WATCHED:.0f} s",
        [
            *("exporter", "series", "KiB", "median ms", "99 % ms"),
            *("resident MiB", "growth MiB", "% of a core"),
        ],
        rows,
    )
    return 0


def _row(peer: Peer) -> list[object]:
    text = _scrape(peer)
    time.sleep(5)
    memory, cpu, began = resident(peer.pid), cpu_seconds(peer.pid), time.monotonic()
    took = []
    for _ in range(SCRAPES):
        time.sleep(WATCHED / SCRAPES)
        asked = time.perf_counter()
        text = _scrape(peer)
        took.append(time.perf_counter() - asked)
    used = (cpu_seconds(peer.pid) - cpu) / (time.monotonic() - began)
    now = resident(peer.pid)
    series = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
    return [
        peer.name,
        series,
        len(text) / 1024,
        percentile(took, 0.5) * 1000,
        percentile(took, 0.99) * 1000,
        now / 2**20,
        (now - memory) / 2**20,
        used * 100,
    ]


def _scrape(peer: Peer) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    finally:
        connection.close()


@contextmanager
def _agent(folder: str) -> Iterator[Peer]:
    port = _free_port()
    environment = {
        **os.environ,
        "NODEAGENT_RUN_DIR": f"{folder}/run",
        "NODEAGENT_STATE_DIR": f"{folder}/state",
        "NODEAGENT_PLAN_FILE": f"{folder}/none.yaml",
        "NODEAGENT_PLAN_SOURCE": "file",
        "NODEAGENT_KUBERNETES_USE": "never",
        "NODEAGENT_API_LISTEN": f"127.0.0.1:{port}",
        "NODEAGENT_SAMPLE_INTERVAL": "1",
    }
    command = [sys.executable, "-m", "nodeagent", "run"]
    with _running("nodeagent", command, port, environment) as peer:
        yield peer


@contextmanager
def _nvitop(command: str) -> Iterator[Peer]:
    port = _free_port()
    words = [*shlex.split(command), "--bind-address", "127.0.0.1", "--port", str(port)]
    words += ["--interval", "1"]
    with _running("nvitop-exporter", words, port, dict(os.environ)) as peer:
        yield peer


@contextmanager
def _running(
    name: str, command: list[str], port: int, environment: dict[str, str]
) -> Iterator[Peer]:
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peer = Peer(name, process.pid, port)
    try:
        until = time.monotonic() + STARTED
        while True:
            try:
                _scrape(peer)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{name} does not answer: {shlex.join(command)}") from None
                time.sleep(0.2)
        yield peer
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
