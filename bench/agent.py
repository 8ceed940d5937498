"""The running agent: how soon it is in sync, and what it costs while nothing happens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from bench.commands import PLAN
from bench.processes import cpu_seconds, installed, resident
from bench.tables import percentile, show

SIMULATED = ("nodeagent", "run", "--simulate", "h100-80gb:8")
STARTS = 7
IDLE = 130.0  # seconds: two resyncs at the default of 60 s are in it


def run() -> None:
    """Start on h100-80gb:8 with 56 instances to make, then leave it alone."""
    with installed():
        _start()  # compiles what it imports
        starts = [_start() for _ in range(STARTS)]
        with closing(Running()) as agent:
            memory, cpu = agent.idle(IDLE)
    show(
        "The agent on h100-80gb:8 with 56 instances",
        ["figure", "value"],
        [
            ["process start to InSync as its API reports, median s", percentile(starts, 0.5)],
            ["the same, slowest of 7, s", max(starts)],
            [f"resident memory after {IDLE:.0f} s idle, MiB", memory / 2**20],
            [f"CPU while idle over {IDLE:.0f} s, % of a core", cpu * 100],
        ],
    )


class Running:
    """An agent in a process of its own, in a directory of its own."""

    def __init__(
        self,
        program: Sequence[str] = SIMULATED,
        plan: str = PLAN,
        prepare: Callable[[Path], object] = lambda _: None,
        **settings: str,
    ) -> None:
        """`prepare` gets the state directory before the start."""
        self._directory = tempfile.TemporaryDirectory()
        here = Path(self._directory.name)
        self._plan = here / "plan.yaml"
        self._digest = ""
        prepare(here / "state")
        self.plan(plan)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = {
            **os.environ,
            "NODEAGENT_RUN_DIR": str(here / "run"),
            "NODEAGENT_STATE_DIR": str(here / "state"),
            "NODEAGENT_API_LISTEN": f"127.0.0.1:{self.port}",
            **settings,
        }
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, "--plan", str(here / "plan.yaml")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if program is not SIMULATED else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_until_in_sync(self) -> float:
        """Seconds from the process' start, or from the plan's change, until its API says so."""
        while time.perf_counter() - self.began < 60:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/status") as answer:
                    status = json.load(answer)
                    if status["phase"] == "InSync" and status["digest"] != self._before:
                        self._digest = status["digest"]
                        return time.perf_counter() - self.began
            except urllib.error.URLError:
                pass
            time.sleep(0.02)
        raise TimeoutError("the agent did not get in sync within 60 s")

    def plan(self, text: str) -> None:
        """Replace the plan as most programs do."""
        new = self._plan.with_suffix(".new")
        new.write_text(text)
        new.replace(self._plan)
        self._before, self.began = self._digest, time.perf_counter()

    def ask(self) -> str:
        """The program's answer to an empty line."""
        if not (self.process.stdin and self.process.stdout):
            raise RuntimeError("this program is not asked")
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode()

    def idle(self, seconds: float) -> tuple[int, float]:
        """Resident bytes, and the share of a core used, once it is in sync."""
        self.wait_until_in_sync()
        time.sleep(5)
        before = cpu_seconds(self.process.pid)
        time.sleep(seconds)
        cpu = (cpu_seconds(self.process.pid) - before) / seconds
        return resident(self.process.pid), cpu

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self._directory.cleanup()


def _start() -> float:
    with closing(Running()) as agent:
        return agent.wait_until_in_sync()
