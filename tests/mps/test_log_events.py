"""A log is its user's to write: whoever floods it holds up nothing and fills no memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.mps.control.query import Seen, SeenServer
from nodeagent.mps.files.log import LogWatch
from nodeagent.mps.lifecycle.model import (
    Event,
    Phase,
    ServerGone,
    ServerSeen,
    ServerStatus,
    State,
)
from nodeagent.mps.log_events import LogEvents
from nodeagent.mps.shares import DaemonSpec

FLOODS: dict[str, Callable[[int], str]] = {
    "nothing": lambda _: "",
    "exits": lambda i: f"[x Control 1] Server {i} exited with status {i + 1}",
    "ready": lambda i: f"[x Control 1] NEW SERVER {i}: Ready",
    "clients": lambda _: f"[x Control 1] NEW CLIENT {os.getpid()} from user 7: Server is not ready",
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood(tmp_path: Path, kind: str) -> None:
    """The loop is never held for long, few events come of it, and later lines are read."""
    log = tmp_path / "daemon.log"
    log.write_bytes(b"")
    spec = DaemonSpec("GPU-1", 1000, 1000, str(tmp_path), str(tmp_path), None, 100.0)
    events: list[Event] = []
    async with LogWatch() as watch:
        listener = LogEvents(
            1,
            spec,
            os.getpid(),
            watch=watch,
            log_size=1 << 22,
            handle=events.append,
            stirred=lambda: None,
            state=lambda: State(phase=Phase.READY, running=spec),
            adopted=False,
        )
        with log.open("a") as file:
            file.write("".join(f"{FLOODS[kind](i)}\n" for i in range(100_000)))
        longest = await _longest_turn(lambda: listener._log is None or listener._log.behind <= 0)
        with log.open("a") as file:
            file.write("[x Control 1] Server 77 exited with status 0\n" * 2)
        await _longest_turn(
            lambda: [e.pid for e in events if isinstance(e, ServerGone)][-1:] == [77]
        )
        listener.close()
    assert longest < 0.3
    assert len([e for e in events if isinstance(e, ServerGone) and e.status]) <= 20
    assert isinstance(events[-1], ServerGone)
    assert events[-1].pid == 77


async def _longest_turn(so: Callable[[], bool]) -> float:
    """How long the loop was held at most until it is so, in seconds of processor time."""
    longest = 0.0
    async with asyncio.timeout(30):
        while not so():
            now = time.thread_time()
            await asyncio.sleep(0.005)
            longest = max(longest, time.thread_time() - now)
    return longest


async def test_who_caused_a_fault_is_read_before_it_is_told(tmp_path: Path) -> None:
    """An answer may come before the log has been looked at, which names the client."""
    log = tmp_path / "daemon.log"
    log.write_bytes(b"")
    spec = DaemonSpec("GPU-1", 1000, 1000, str(tmp_path), str(tmp_path), None, 100.0)
    state = State(phase=Phase.READY, running=spec)
    async with LogWatch() as watch:
        listener = LogEvents(
            1,
            spec,
            os.getpid(),
            watch=watch,
            log_size=1 << 22,
            handle=lambda _: None,
            stirred=lambda: None,
            state=lambda: state,
            adopted=False,
        )
        with log.open("a") as file:
            file.write("[x Server 50] Client process 4711 encountered a fatal GPU error.\n")
        faulted = SeenServer(50, ServerStatus.FAULT, (), None, 100.0)
        events = list(listener.judge(Seen((faulted,), None, 100.0), state))
        listener.close()
    assert [e.server.culprit for e in events if isinstance(e, ServerSeen)] == [4711]
