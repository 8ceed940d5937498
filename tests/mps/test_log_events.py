"""A log is its user's to write: a user who floods it holds up nothing and fills no memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.mps.lifecycle.model import Ending, Event, ServerGone
from nodeagent.mps.log_events import LogEvents
from tests.mps.plans import daemon_spec

FLOODS: dict[str, Callable[[int], str]] = {
    "nothing": lambda _: "",
    "exits": lambda i: f"[x Control 1] Server {i} exited with status {i + 1}",
    "ready": lambda i: f"[x Control 1] NEW SERVER {i}: Ready",
    "clients": lambda _: f"[x Control 1] NEW CLIENT {os.getpid()} from user 7: Server is not ready",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood(tmp_path: Path, kind: str) -> None:
    """The loop is never held for long, few events come of it, and later lines are read."""
    log = tmp_path / "log/daemon.log"
    log.parent.mkdir()
    log.write_bytes(b"")
    spec = daemon_spec(f"{tmp_path}/pipe", "GPU-1")
    events: list[Event] = []
    listener = LogEvents(1, spec, os.getpid(), log_size=1 << 22, adopted=False)
    longest = 0.0

    def read_all() -> None:
        nonlocal longest
        while listener.log.behind:
            now = time.thread_time()
            events.extend(listener.read(Ending.NO)[1])
            longest = max(longest, time.thread_time() - now)

    with log.open("a") as file:
        file.write("".join(f"{FLOODS[kind](i)}\n" for i in range(100_000)))
    read_all()
    with log.open("a") as file:
        file.write("[x Control 1] Server 77 exited with status 0\n" * 2)
    read_all()
    listener.log.close()
    assert longest < 0.3
    assert len([e for e in events if isinstance(e, ServerGone) and e.status]) <= 20
    assert isinstance(events[-1], ServerGone)
    assert events[-1].pid == 77
