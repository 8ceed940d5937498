"""MPS daemons that die, agents that die, and clients of the wrong user, on simulated GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.tables import percentile, show
from nodeagent.simulation.mps.clients import SimulatedClient

KILLS = 50
ROUNDS = 50
STRANGERS = 20
FIRST_DELAY = 0.1  # seconds; what a restart takes is measured beyond it
_USER = 1000 if os.geteuid() == 0 else os.geteuid()
_PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{replicas: 4, user: {_USER}}}
  - devices: [1]
    mig: {{1g.10gb: 7}}
    mps: {{clients: {{memory: 4Gi}}, user: {_USER}}}
"""


def run() -> None:
    """Eight daemons: one on a whole GPU, seven on MIG devices of another."""
    with_daemons = _Node()
    try:
        with_daemons.start()
        with_daemons.until_ready()
        kills = _kills(with_daemons)
        rounds = _rounds(with_daemons)
        strangers = _strangers(with_daemons) if os.geteuid() == 0 else []
    finally:
        with_daemons.end()
    rows: list[list[object]] = [
        [f"kill -9 to Ready beyond the first delay, {KILLS} times, p50 s", percentile(kills, 0.5)],
        ["the same, p99 s", percentile(kills, 0.99)],
        [
            f"agent's start to all 8 adopted and Ready, {ROUNDS} times, p50 s",
            percentile(rounds, 0.5),
        ],
        ["the same, slowest s", max(rounds)],
    ]
    if strangers:
        rows += [
            [f"a client of another user to his name in /v1/mps, {STRANGERS} times, p50 s",
             percentile(strangers, 0.5)],
            ["the same, slowest s", max(strangers)],
        ]  # fmt: skip
    show("MPS daemons of the stand-in on h100-80gb:2", ["figure", "value"], rows)


class _Node:
    """A simulated node and the agent on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
        self.folder.chmod(0o755)
        (self.folder / "plan.yaml").write_text(_PLAN)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "NODEAGENT_RUN_DIR": f"{self.folder}/run",
            "NODEAGENT_STATE_DIR": f"{self.folder}/state",
            "NODEAGENT_API_LISTEN": f"127.0.0.1:{self._port}",
            "NODEAGENT_MPS_FIRST_DELAY": str(FIRST_DELAY),
            "NODEAGENT_MPS_STEADY": "0.05",  # so that a daemon killed again has not failed quickly
        }
        self._agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "nodeagent", "run", "--simulate", "h100-80gb:2"),
                *("--state", f"{self.folder}/node.json", "--plan", f"{self.folder}/plan.yaml"),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self, number: signal.Signals) -> None:
        if self._agent is not None:
            self._agent.send_signal(number)
            self._agent.wait()

    def daemons(self) -> dict[str, dict[str, Any]]:
        """By device; none while the agent does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v1/mps") as answer:
                return {d["device"]: d for d in json.load(answer)["daemons"]}
        except (urllib.error.URLError, ConnectionError):
            return {}

    def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> float:
        """Seconds until the daemons are so."""
        began = time.perf_counter()
        while not condition(self.daemons()):
            if time.perf_counter() - began > 60:
                raise TimeoutError(f"not within 60 s: {self.daemons()}")
            time.sleep(0.005)
        return time.perf_counter() - began

    def until_ready(self) -> float:
        return self.until(
            lambda found: len(found) == 8 and all(d["state"] == "Ready" for d in found.values())
        )

    def client(self, device: str, slot: str, uid: int) -> SimulatedClient:
        """A program with the environment of a slot."""
        file = self.folder / "run/mps" / device / "env" / f"{slot}.env"
        environment = dict(line.split("=", 1) for line in file.read_text().splitlines() if line)
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        return SimulatedClient(pipes, uid=uid, environment=environment)

    def end(self) -> None:
        """End the agent and every process of this node."""
        self.stop(signal.SIGTERM)
        for entry in Path("/proc").iterdir():
            try:
                if str(self.folder).encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue
        shutil.rmtree(self.folder, ignore_errors=True)


def _whole(node: _Node) -> str:
    return next(device for device in node.daemons() if device.startswith("GPU-"))


def _lives(node: _Node) -> dict[str, tuple[int, int]]:
    """Pid and number of restarts of each daemon."""
    return {d: (found["pid"], found["restarts"]) for d, found in node.daemons().items()}


def _kills(node: _Node) -> list[float]:
    """Seconds beyond the delay, for each kill; no other daemon may notice."""
    device = _whole(node)
    others = {d: found["pid"] for d, found in node.daemons().items() if d != device}
    taken = []
    for _ in range(KILLS):
        time.sleep(0.2)
        pid = node.daemons()[device]["pid"]
        os.kill(pid, signal.SIGKILL)

        def is_back(found: dict[str, dict[str, Any]], dead: int = pid) -> bool:
            now = found.get(device, {})
            return now.get("state") == "Ready" and now.get("pid") != dead

        taken.append(node.until(is_back) - FIRST_DELAY)
    left = {d: found["pid"] for d, found in node.daemons().items() if d != device}
    if left != others:
        raise RuntimeError("other daemons were disturbed")
    return taken


def _rounds(node: _Node) -> list[float]:
    """Seconds for each new agent, after kill -9 and SIGTERM by turns; no daemon may change."""
    device = _whole(node)
    before = _lives(node)
    taken = []
    with node.client(device, "replica-0", _USER) as client:
        client.wait_until_accepted(30)
        for number in range(ROUNDS):
            node.stop((signal.SIGKILL, signal.SIGTERM)[number % 2])
            client.allocate(1 << 20)
            node.start()
            taken.append(node.until_ready())
            if _lives(node) != before:
                raise RuntimeError(f"round {number}: {_lives(node)} instead of {before}")
        client.allocate(1 << 20)
    return taken


def _strangers(node: _Node) -> list[float]:
    """Seconds from a stranger's start until he is named; a daemon's own client is served."""
    device = _whole(node)
    taken = []
    with node.client(device, "replica-0", _USER) as client:
        client.wait_until_accepted(30)
        for _ in range(STRANGERS):
            began = time.perf_counter()
            with node.client(device, "replica-1", _USER + 1) as stranger:
                pid = stranger.pid
                node.until(
                    lambda found, pid=pid: any(  # type: ignore[misc]  # a default binds it
                        w["pid"] == pid for w in found.get(device, {}).get("waiting", ())
                    )
                )
                taken.append(time.perf_counter() - began)
            node.until(lambda found: not found.get(device, {}).get("waiting"))
    return taken
