"""The log is read once and in order, and never is anything else touched in its place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.mps.files.log import DaemonLog
from tests.fuse import can_mount, silent_file_system

NO_PROCESS = 2**22 - 1  # the pid of no process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with two lines."""
    log = tmp_path / "daemon.log"
    log.write_text("one\ntwo\n")
    return log


@contextmanager
def opened(path: Path, *, pid: int = NO_PROCESS, tail: int = 0) -> Iterator[DaemonLog]:
    """The log, closed in the end."""
    log = DaemonLog(str(path.parent), pid=pid, tail=tail)
    try:
        yield log
    finally:
        log.close()


def append(path: Path, text: str) -> None:
    """As a daemon does."""
    with path.open("a") as file:
        file.write(text)


def test_new_lines(path: Path) -> None:
    """Each once, whole, in order; the earlier ones only when asked for."""
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
    """It is read from its beginning again."""
    with opened(path) as log:
        os.truncate(path, 0)
        append(path, "x\n")
        assert log.new_lines() == ["x"]


def test_bounded(path: Path) -> None:
    """In place, so that the daemon's descriptor goes on; what was not read yet is not lost."""
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
    """Is replaced, not written through."""
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
    """Is not read, and not waited for."""
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    match kind:
        case "symlink":
            path.symlink_to(victim)
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


def test_a_removed_log(path: Path) -> None:
    """The daemon still has it; it is read by that, and never cut off."""
    with path.open("a") as daemon:
        process = subprocess.Popen(["sleep", "60"], stdout=daemon)
        try:
            path.unlink()
            with opened(path, pid=process.pid, tail=10**6) as log:
                assert log.new_lines() == ["one", "two"]
                log.bound(1)
                assert log.last_lines(1) == ("two",)
        finally:
            process.kill()
            process.wait()


def test_another_file_as_standard_output(path: Path, tmp_path: Path) -> None:
    """A daemon's user may have put there what it may only read: it is neither read nor cut off."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.unlink()
    with victim.open() as precious:
        process = subprocess.Popen(["sleep", "60"], stdout=precious)
    try:
        with opened(path, pid=process.pid, tail=100) as log:
            assert (log.new_lines(), log.last_lines(1)) == ([], ())
            log.bound(1)
    finally:
        process.kill()
        process.wait()
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
    """They are for people: printable, without what no reader needs."""
    append(
        path, "[t Control 1] NEW UI\n[t Control 1] Cmd:ps\n[t Control 1] UI closed\n\n\x1b[31mred\n"
    )
    with opened(path) as log:
        assert log.last_lines(2) == ("two", "[31mred")


def test_last_lines_before_something(path: Path) -> None:
    """What was written after the line that matters does not push out what led to it."""
    append(path, "no device\nServer 7 exited\nStarting new server\nConnecting\n")
    with opened(path) as log:
        assert log.last_lines(2, until="Server 7 exited") == ("no device", "Server 7 exited")
        assert log.last_lines(1, until="Server 8 exited") == ("Connecting",)
