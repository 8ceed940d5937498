"""Claims with MPS, on a slice and on a whole GPU, whose agent is killed at any of its changes.

After each cut a new agent finds what the files, the hardware and the processes say. Then the claim
is prepared with its one daemon, or gone without a trace: no daemon, no directory, no file.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.claims.mps_cuts import SCENARIOS


def cuts(*arguments: str, seconds: float) -> int:
    """How many there were in a scenario, each put right by the next agent."""
    program = [sys.executable, "-m", "tests.claims.mps_cuts", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.splitlines()[-1])  # logs are above


def test_killed_around_the_start_of_the_daemon() -> None:
    """When all is made and recorded but the daemon, and when it runs and was not asked yet."""
    assert cuts("slice", "start", "ask", seconds=200) == 2


def test_killed_while_the_daemon_goes() -> None:
    """When it has ended, and its directories are gone but for its record."""
    assert cuts("whole released", "remove record.json", seconds=200) == 1


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_change(scenario: str) -> None:
    """Of a file, the hardware or the daemon; the endings take turns."""
    assert cuts(scenario, seconds=1100) > 20
