"""MPS daemons that die, agents that die, and clients of the wrong user, on simulated GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.tables import percentile, show
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.acceptance.agent_home import USER, Home
from tests.folders import open_folder

KILLS = 50
ROUNDS = 50
STRANGERS = 20
FIRST_DELAY = 0.1  # seconds, as Home has it; what a restart takes is measured beyond it
_PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{replicas: 4, user: {USER}}}
  - devices: [1]
    mig: {{1g.10gb: 7}}
    mps: {{clients: {{memory: 4Gi}}, user: {USER}}}
"""


def run() -> None:
    """Eight daemons: one on a whole GPU, seven on MIG devices of another."""
    with open_folder() as folder:
        node = _Node(folder)
        try:
            node.start()
            node.until_ready()
            kills = _kills(node)
            rounds = _rounds(node)
            strangers = _strangers(node) if os.geteuid() == 0 else []
        finally:
            node.end_everything()
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


class _Node(Home):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plan.write_text(_PLAN)
        # A daemon that is killed again has not failed quickly.
        self.settings = {"NODEAGENT_MPS_STEADY": "0.05"}

    def by_device(self) -> dict[str, dict[str, Any]]:
        return {daemon["device"]: daemon for daemon in self.daemons()}

    def until_so(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> float:
        """Seconds until the daemons are so."""
        began = time.perf_counter()
        while not condition(self.by_device()):
            if time.perf_counter() - began > 60:
                raise TimeoutError(f"not within 60 s: {self.by_device()}")
            time.sleep(0.005)
        return time.perf_counter() - began

    def until_ready(self) -> float:
        return self.until_so(
            lambda found: len(found) == 8 and all(d["state"] == "Ready" for d in found.values())
        )

    def program(self, device: str, slot: str, uid: int) -> SimulatedClient:
        """One with the environment of a slot."""
        environment = self.env_of(device, slot)
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        return SimulatedClient(pipes, uid=uid, environment=environment)


def _whole(node: _Node) -> str:
    return next(device for device in node.by_device() if device.startswith("GPU-"))


def _lives(node: _Node) -> dict[str, tuple[int, int]]:
    """Pid and number of restarts of each daemon."""
    return {d: (found["pid"], found["restarts"]) for d, found in node.by_device().items()}


def _kills(node: _Node) -> list[float]:
    """Seconds beyond the delay, for each kill; no other daemon may notice."""
    device = _whole(node)
    others = {d: found["pid"] for d, found in node.by_device().items() if d != device}
    taken = []
    for _ in range(KILLS):
        time.sleep(0.2)
        pid = node.by_device()[device]["pid"]
        os.kill(pid, signal.SIGKILL)

        def is_back(found: dict[str, dict[str, Any]], dead: int = pid) -> bool:
            now = found.get(device, {})
            return now.get("state") == "Ready" and now.get("pid") != dead

        taken.append(node.until_so(is_back) - FIRST_DELAY)
    left = {d: found["pid"] for d, found in node.by_device().items() if d != device}
    if left != others:
        raise RuntimeError("other daemons were disturbed")
    return taken


def _rounds(node: _Node) -> list[float]:
    """Seconds for each new agent, after kill -9 and SIGTERM by turns; no daemon may change."""
    device = _whole(node)
    before = _lives(node)
    taken = []
    with node.program(device, "replica-0", USER) as client:
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
    with node.program(device, "replica-0", USER) as client:
        client.wait_until_accepted(30)
        for _ in range(STRANGERS):
            began = time.perf_counter()
            with node.program(device, "replica-1", USER + 1) as stranger:
                pid = stranger.pid
                node.until_so(
                    lambda found, pid=pid: any(  # type: ignore[misc]  # a default binds it
                        w["pid"] == pid for w in found.get(device, {}).get("waiting", ())
                    )
                )
                taken.append(time.perf_counter() - began)
            node.until_so(lambda found: not found.get(device, {}).get("waiting"))
    return taken
