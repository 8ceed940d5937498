"""Whole-process time of commands for eight simulated GPUs, interpreter start included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bench.processes import installed
from bench.tables import percentile, show

PLAN = """\
version: v1
gpus:
  - devices: all
    mig: {1g.10gb: 7}
"""
RUNS = 15


def run() -> None:
    """Every command several times, each time a new process; `apply` each time on an empty node."""
    with installed(), tempfile.TemporaryDirectory() as directory:
        plan = Path(directory) / "plan.yaml"
        plan.write_text(PLAN)
        state = Path(directory) / "node.json"
        boards = ("--simulate", "h100-80gb:8")
        document = ("-f", str(plan))
        _time("apply", *document, *boards, "--state", str(state))
        there = ("--state", str(state))
        rows = [
            _row("apply of 56 instances", "apply", *document, *boards),
            _row("apply, nothing to do", "apply", *document, *there),
            _row("assert", "assert", *document, *there),
            _row("export", "export", *there),
            _row("plan of 56 instances", "plan", *document, *boards),
            _status_row(),
        ]
        bare = [_time_of([sys.executable, "-c", "pass"]) for _ in range(RUNS)]
        rows.append(["(python -c pass)", percentile(bare, 0), percentile(bare, 0.5), max(bare), ""])
        show(
            f"Whole-process time in ms, 8 GPUs, {RUNS} runs; kubernetes is never imported",
            ["command", "min", "median", "max", "kubernetes"],
            rows,
        )


def _row(title: str, *arguments: str) -> list[object]:
    _time(*arguments)  # compiles what it imports
    times = [_time(*arguments) for _ in range(RUNS)]
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nodeagent", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    loaded = "imported" if " kubernetes" in imported else "not imported"
    return [title, min(times), percentile(times, 0.5), max(times), loaded]


def _status_row() -> list[object]:
    from bench.agent import Running

    with closing(Running()) as agent:
        agent.wait_until_in_sync()
        return _row("status", "status", "--listen", f"127.0.0.1:{agent.port}")


def _time(*arguments: str) -> float:
    return _time_of([sys.executable, "-m", "nodeagent", *arguments])


def _time_of(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000
