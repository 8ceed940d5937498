import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.mps.files.log import (
    ClientConnected,
    DaemonLog,
    Fact,
    Faulted,
    LogWatch,
    Recovered,
    ServerExited,
    ServerReady,
    Stirred,
    facts,
    worth_showing,
)
from nodeagent.mps.lifecycle.model import Ending, Event, ServerGone
from nodeagent.mps.log_events import BlockedClients, LogEvents
from tests.fuse import can_mount, silent_file_system
from tests.machine_load import until
from tests.mps.plans import daemon_spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = tmp_path / "daemon.log"
    log.write_text("one\ntwo\n")
    return log


@contextmanager
def opened(path: Path, *, tail: int = 0) -> Iterator[DaemonLog]:
    log = DaemonLog(str(path.parent), tail=tail)
    try:
        yield log
    finally:
        log.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_lines(path: Path) -> None:
    with opened(path) as log:
        assert log.new_lines() == []
        append(path, "three\nfo")
        assert log.new_lines() == ["three"]
        append(path, "ur\n")
        assert (log.behind, log.new_lines(), log.behind) == (3, ["four"], 0)
    with opened(path, tail=10**6) as log:
        assert log.new_lines() == ["one", "two", "three", "four"]
    with opened(path, tail=8) as log:  # begins within a line
        assert log.new_lines() == ["four"]


def test_truncated_by_another_program(path: Path) -> None:
    with opened(path) as log:
        os.truncate(path, 0)
        append(path, "x\n")
        assert log.new_lines() == ["x"]


def test_bounded(path: Path) -> None:
    with opened(path) as log, path.open("a") as daemon:
        print("\n".join(f"line {n}" for n in range(100)), file=daemon, flush=True)
        whole = path.stat().st_size
        log.bound(100)  # not read yet
        assert len(log.new_lines()) == 100
        log.bound(10_000)
        assert path.stat().st_size == whole
        log.bound(100)
        assert path.stat().st_size == 0
        kept = path.with_name("daemon.log.1").read_text().splitlines()
        assert kept[-1] == "line 99"
        assert all(line.startswith("line ") for line in kept)
        print("after", file=daemon, flush=True)
        assert (log.new_lines(), path.read_text()) == (["after"], "after\n")


def test_a_link_in_place_of_what_is_kept(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.with_name("daemon.log.1").symlink_to(victim)
    with opened(path) as log:
        append(path, "x" * 50 + "\ny\n")
        log.new_lines()
        log.bound(10)
    assert path.read_text() == ""
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "directory", "missing"])
def test_what_is_no_log_of_ours(path: Path, tmp_path: Path, kind: str) -> None:
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    match kind:
        case "symlink":
            path.symlink_to("victim")  # relative, as one that leads to / could cross a mount
        case "hard link":
            path.hardlink_to(victim)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
    with opened(path, tail=100) as log:
        assert (log.new_lines(), log.last_lines(1), log.behind) == ([], (), 0)
        log.bound(1)
    assert victim.read_text() == "precious"


@pytest.mark.skipif(not can_mount(), reason="needs root and /dev/fuse")
def test_a_file_system_over_its_directory_is_not_waited_for(path: Path) -> None:
    """Its user may mount one there that never answers; the log is read and cut off on the loop."""
    with path.open("a") as daemon, opened(path) as log, silent_file_system(path.parent):
        print("three", file=daemon, flush=True)
        assert log.new_lines() == ["three"]
        log.bound(1)
        with opened(path, tail=100) as anew:
            assert anew.last_lines(1) == ()
    assert path.read_text() == ""


def test_last_lines(path: Path) -> None:
    append(
        path, "[t Control 1] NEW UI\n[t Control 1] Cmd:ps\n[t Control 1] UI closed\n\n\x1b[31mred\n"
    )
    with opened(path) as log:
        assert log.last_lines(2) == ("two", "[31mred")


# --- log lines ------------------------------------------------------------------------------------


CONTROL = "[2026-09-01 12:00:00.000 Control  4711] "
OTHER = "[2026-09-01 12:00:00.000 Other 4712] "


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (
            f"{CONTROL}NEW CLIENT 99 from user 1001: Server already exists",
            ClientConnected(99, 1001, False),
        ),
        (
            f"{CONTROL}NEW CLIENT 99 from user 1001: Server is not ready, push client to pending l",
            ClientConnected(99, 1001, True),
        ),
        (f"{CONTROL}NEW SERVER 50: Ready", ServerReady(50)),
        (f"{CONTROL}Server 50 exited with status 1", ServerExited(50, 1)),
        (f"{OTHER}Client process 99 encountered a fatal GPU error.", Faulted(99)),
        (f"{OTHER}Server is handling a fatal GPU error.", Faulted(None)),
        (f"{OTHER}Destroy server context on device 0", Recovered()),
        (f"{OTHER}Received new client request for {{PID: 99, Context ID: 0}}", Stirred()),
        (f"{OTHER}Client {{99, 0}} exit", Stirred()),
        ("[2021-09-01 12:00:00.000 Other 4712] Volta MPS: Server has started", Stirred()),
        (f"{OTHER}Client disconnected. Number of active client contexts is 0", Stirred()),
    ],
)
def test_what_counts(line: str, fact: Fact) -> None:
    assert list(facts([line])) == [fact]


@pytest.mark.parametrize(
    "text",
    [
        "Accepting connection...",
        "NEW UI",
        "UI closed",
        "User did not send valid credentials",
        "Cmd:NEW CLIENT 99 from user 1001: pending",
        "ACTIVE",
        "4711",
        'Unknown command "__1"',
        "Server 50 is <busy>",
        "99         0         50   GPU-1   4026531836   NEW CLIENT 1 from user 0",
        "",
    ],
)
def test_what_our_own_questions_leave(text: str) -> None:
    assert list(facts([f"{CONTROL}{text}"])) == []


def test_only_lines_of_the_log_count() -> None:
    assert list(facts(["NEW CLIENT 99 from user 1001: pending", "x] NEW SERVER 50: Ready"])) == []


def test_lines_of_interest_to_a_person() -> None:
    lines = [
        f"{CONTROL}Starting control daemon using socket /x/control",
        f"{CONTROL}Accepting connection...",
        f"{CONTROL}NEW UI",
        f"{CONTROL}Cmd:get_server_list",
        f"{CONTROL}50",
        f"{OTHER}Failed to start : no CUDA-capable device is detected",
        f"{CONTROL}Server 50 exited with status 1",
        f"{CONTROL}Cmd:__1",
        f'{CONTROL}Unknown command "__1"',
        f"{CONTROL}UI closed",
        "An instance of this daemon is already running",
    ]
    assert list(worth_showing(lines)) == [lines[0], lines[5], lines[6], lines[10]]


# Two files in turn, because the kernel makes one event of many for a single file.
_WRITERS = """
import os, sys
one, other = (os.open(path, os.O_WRONLY) for path in sys.argv[1:])
while True:
    os.pwrite(one, b"x", 0)
    os.pwrite(other, b"x", 0)
"""


async def test_writers_without_end(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    notified = 0

    def grown() -> None:
        nonlocal notified
        notified += 1

    async with LogWatch() as watch:
        for path in paths:
            path.touch()
            watch.watch(str(path), grown)
        writers = subprocess.Popen([sys.executable, "-IS", "-c", _WRITERS, *paths])
        try:
            await until(lambda: notified)
            longest, end = 0.0, time.monotonic() + 1.0
            while time.monotonic() < end:
                busy = time.thread_time()
                await asyncio.sleep(0.005)
                longest = max(longest, time.thread_time() - busy)
        finally:
            writers.kill()
            writers.wait()
        assert longest < 0.5
        assert notified < 1000
        await asyncio.sleep(1.5)
        before = notified
        await asyncio.to_thread(paths[0].write_text, "the end")
        await until(lambda: notified != before)


# --- log events -----------------------------------------------------------------------------------


def test_who_does_not_wait() -> None:
    blocked = BlockedClients(os.geteuid())
    for pid in (2**22 - 1, os.getpid()):
        blocked.connected(ClientConnected(pid, 1234, pending=True), 0.0)
    assert blocked.judge((), None, 1000.0) == blocked.waiting == ()
    assert not blocked.is_unsure


FLOODS: dict[str, Callable[[int], str]] = {
    "nothing": lambda _: "",
    "exits": lambda i: f"[x Control 1] Server {i} exited with status {i + 1}",
    "ready": lambda i: f"[x Control 1] NEW SERVER {i}: Ready",
    "clients": lambda _: f"[x Control 1] NEW CLIENT {os.getpid()} from user 7: Server is not ready",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood(tmp_path: Path, kind: str) -> None:
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
    assert log.stat().st_size <= 1 << 22
    assert len([e for e in events if isinstance(e, ServerGone) and e.status]) <= 20
    assert isinstance(events[-1], ServerGone)
    assert events[-1].pid == 77
