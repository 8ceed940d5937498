"""SIGTERM while the agent has hardly begun."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.agent_home import Home
from tests.machine_load import stretched

SIGTERM = 1 << (signal.SIGTERM - 1)


def masked(home: Home, *keys: str) -> bool:
    """Whether one of these of the agent's signal masks has SIGTERM in it."""
    assert home.agent is not None
    status = Path(f"/proc/{home.agent.pid}/status").read_text()
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return any(int(masks[key], 16) & SIGTERM for key in keys)


# From the first line of our code to the end of its start.
MOMENTS: dict[str, Callable[[Home], bool]] = {
    "the program begins": lambda home: masked(home, "SigBlk", "SigCgt"),
    "it is the only writer": lambda home: (home.folder / "node.json.writer.lock").exists(),
    "its own handler is there": lambda home: masked(home, "SigCgt"),
    "its state is looked for": lambda home: (home.folder / "node.json.mps/bin").exists(),
    "the first line of its log": lambda home: "timestamp" in home.said(),
}


@pytest.mark.parametrize(
    "moment",
    [
        moment if number % 2 else pytest.param(moment, marks=pytest.mark.full)
        for number, moment in enumerate(MOMENTS)
    ],
)
def test_it_ends_well(home: Home, moment: str) -> None:
    """With exit code 0 and without a traceback."""
    home.plan.write_text("version: v1\ngpus: [{devices: [0], mig: {1g.10gb: 1}}]\n")
    home.start()
    agent = home.agent
    assert agent is not None
    deadline = time.monotonic() + stretched(30)
    while not MOMENTS[moment](home) and agent.poll() is None:  # as soon as it can be seen
        assert time.monotonic() < deadline
        time.sleep(0.001)
    home.stop(signal.SIGTERM)
    assert agent.returncode == 0, home.said()
    assert "Traceback" not in home.said()
