"""What holds of a real fleet whatever goes wrong, in whatever order: Ready only with limits in
force, no orphan, no second daemon, no start before the backoff is over.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.errors import NodeagentError
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.lifecycle.model import Report, Subject
from nodeagent.mps.processes import CONTROL
from tests.draws import draws
from tests.mps.fleet_rig import (
    GPU,
    POLICY,
    FleetRig,
    quick,
    ready,
    status,
    until,
    wanted,
)

HARM = {
    "die": True,
    "forget_limits": True,
    "hang": True,
    "lose_pipes": True,
    "server_die": True,
    "server_slow": 0.4,
    "server_deaf": True,
    "fault": True,
    "busy": "error",
    "deaf": True,
    "slow_start": 0.2,
}
MOVES = [*HARM, *HARM, "clear", "kill", "client", "limits", "drain", "restart", "stop", "agent"]
POLICY_HERE = quick(most_failures=50, longest_delay=0.2)


class Watched(FleetRig):
    """Looks, at every report, whether that report is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.impatient = True
        self.wrong: list[str] = []
        self.ended = -1.0
        self.by_request = True
        self.was_ready = True  # as an adopted one counts

    def hear(self, device: str, report: Report) -> None:
        """Note a report at the moment it is made."""
        now = time.monotonic()
        match report.subject:
            case Subject.EXITED | Subject.START_FAILED:
                self.ended, self.by_request = now, False
            case Subject.STARTED:
                waited = now - self.ended
                # One that was Ready has been steady (of 0 s, here), and is started at once.
                # How long it is exactly, virtual time proves: here a report may be a bit late.
                soon = waited < 0.25 * POLICY.first_delay
                if soon and not self.by_request and not self.was_ready:
                    self.wrong.append(f"started after {waited} s")
                if len(self.processes(CONTROL)) > 1 + self.front_ends():
                    self.wrong.append("two daemons")
                if self.servers():  # its own cannot be there yet
                    self.wrong.append("a daemon was started beside an orphan")
                self.by_request, self.was_ready = True, False
            case Subject.DRAINED:
                self.by_request = True  # its end was wanted, so there is nothing to back off from
            case Subject.READY:
                self.was_ready = True
                self.judge_ready()

    def front_ends(self) -> int:
        """Those talking just now; they have the same name, and a leader who is no daemon."""
        log = Path(self.log())
        pids = [one.pid for one in self.processes(CONTROL)]
        holders = {pid for pid in pids if _writes(pid, log)}
        return len(pids) - len(holders)

    def judge_ready(self) -> None:
        """The daemon's own log shows what it answered last when it was asked for its limits."""
        with suppress(OSError):
            text = self.log().read_text()
            last = text.rpartition("Cmd:get_default_active_thread_percentage\n")[2]
            if f"] {self.percentage}" not in last.split("UI closed")[0]:
                self.wrong.append(f"Ready with {last[:200]!r}, wanted {self.percentage}")

    percentage = "50.0"


def _writes(pid: int, log: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/fd/1").resolve() == log
    except OSError:
        return False


async def walk(rig: Watched, moves: list[str], jitter: random.Random) -> None:
    """Each move, with a moment between them; then all is cleared, and it becomes Ready."""
    again = True
    at = iter(moves)
    while again:
        again = False
        rig.by_request = True  # another agent starts what it finds wanted, at once
        async with rig.fleet(POLICY_HERE, report=rig.hear) as fleet:
            await _start(rig, fleet)
            for move in at:
                await asyncio.sleep(jitter.choice([0.0, 0.02, 0.1, 0.25]))
                if move == "agent":
                    again = True
                    break
                await _act(rig, fleet, move)
            if not again:
                rig.knobs().clear()
                await _start(rig, fleet)
                await ready(fleet)
                await _end_well(rig, fleet)


async def _act(rig: Watched, fleet: Fleet, move: str) -> None:
    if move in HARM:
        rig.knobs().turn(move, HARM[move])
    elif move == "clear":
        rig.knobs().clear()
    elif move == "kill":
        for one in rig.processes(CONTROL):
            if one.pid == status(fleet).pid:
                os.kill(one.pid, signal.SIGKILL)
    elif move == "client":
        with suppress(Exception), rig.client() as client:  # whatever becomes of it
            await asyncio.to_thread(client.wait_until_accepted, 0.5)
    else:
        rig.by_request = True
        with suppress(NodeagentError, TimeoutError):
            async with asyncio.timeout(1.5):
                await _wish(rig, fleet, move)
        rig.by_request = True


async def _wish(rig: Watched, fleet: Fleet, move: str) -> None:
    match move:
        case "limits":
            rig.percentage = "25.0" if rig.percentage == "50.0" else "50.0"
            await _start(rig, fleet)
        case "drain":
            await fleet.drain(GPU, seconds=0.3)
        case "restart":
            await fleet.restart(GPU)
        case "stop":
            try:
                await fleet.stop(GPU)
            finally:
                await _start(rig, fleet)


async def _start(rig: Watched, fleet: Fleet) -> None:
    with suppress(NodeagentError):
        await fleet.start(GPU, wanted(threads=float(rig.percentage)))


async def _end_well(rig: Watched, fleet: Fleet) -> None:
    """One daemon with its limits, no server that is not its own; and all of it can be ended."""

    def no_orphan() -> bool:  # one that was killed just now has its orphan for a moment
        daemon = fleet.daemon_of(GPU)
        return daemon is not None and set(rig.servers()) == set(daemon.servers)

    await until(no_orphan)
    await ready(fleet)
    rig.judge_ready()
    await fleet.keep_only(())
    assert rig.processes() == []


@settings(
    max_examples=draws(8),
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(moves=st.lists(st.sampled_from(MOVES), min_size=2, max_size=9), seed=st.integers(0, 1000))
def test_no_sequence_of_faults_and_wishes_breaks_a_rule(moves: list[str], seed: int) -> None:
    """With processes, sockets and clocks, not only with values."""
    with Watched() as rig:
        asyncio.run(walk(rig, moves, random.Random(seed)))
        assert rig.wrong == []
