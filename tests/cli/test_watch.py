"""`nodeagent status --watch` on a terminal."""

import json
import os
import pty
import re
import select
import signal
import termios
from collections.abc import Iterator

import pytest

from tests.cli.agent_server import STATUS, answering
from tests.cli.conftest import Program
from tests.machine_load import stretched

TAKEN, GIVEN_BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
KEYS = "↑↓ GPU  Enter details  s sort: index  e events  q quit"
EVENT = {"time": "2026-01-02T03:04:05.678Z", "type": "Applied", "message": "made", "gpu": "GPU-1"}


class Watched:
    """The command on a terminal of 100 columns and 30 rows."""

    def __init__(self, program: Program, *words: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(30)
        self.before = termios.tcgetattr(self.theirs)
        unset = {"NO_COLOR", "COLUMNS", "LINES"}
        environment = {k: v for k, v in os.environ.items() if k not in unset} | {"TERM": "xterm"}
        terminal = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        self.running = program.process("status", "--watch", *words, env=environment, **terminal)

    def resize(self, rows: int) -> None:
        termios.tcsetwinsize(self.theirs, (rows, 100))

    def press(self, keys: str, words: str) -> str:
        """What is written until these words are, after keys that lead to it."""
        os.write(self.ours, keys.encode())
        written, shown = b"", ""
        while words not in shown:
            assert select.select([self.ours], [], [], stretched(20))[0], shown
            written += os.read(self.ours, 1 << 16)  # may end within a character
            shown = re.sub(r"\x1b\[[\d;]*m", "", written.decode(errors="replace"))
        return shown

    @property
    def is_given_back(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before


@pytest.fixture
def watched(program: Program) -> Iterator[Watched]:
    first, second = STATUS["gpus"]
    status = {**STATUS, "gpus": [first, {**second, "utilization": 90.0}]}
    with answering(json.dumps(status).encode()) as (where, handler):
        handler.events = json.dumps([EVENT]).encode()
        watched = Watched(program, "--listen", where)
        yield watched
        os.close(watched.ours)
        os.close(watched.theirs)


def test_keys_choose_what_is_shown(watched: Watched) -> None:
    with watched.running as process:
        first = watched.press("", KEYS)
        assert first.startswith(TAKEN)
        assert first.index("> 0") < first.index("  1! ")
        assert not watched.is_given_back  # but read key by key, without echo
        assert "  0  │" in watched.press("\x1b[B\x1b[B", "> 1! ")
        by_use = watched.press("s", "s sort: utilization")
        assert by_use.index("> 1! ") < by_use.index("  0  │")
        details = watched.press("\r", "↑↓ GPU  Enter back  e events  q quit")
        assert "GPU 1" in details
        assert "GPU 0" not in details
        assert "MIG-0" in watched.press("\x1bOB\x1b[5~", "Enter back")
        assert "node gpu-node-0: 0 events in the last hour" in watched.press("e", "e, Enter back")
        assert "MIG-0" in watched.press("\x1b[B\n", "Enter back  e")
        watched.press("e", "e, Enter back")
        assert "MIG-0" in watched.press("\x1b", "Enter back  e")
        watched.press("\x1b", KEYS.replace("index", "utilization"))
        watched.press("sss", KEYS)
        assert "Applied  GPU 1: made" in watched.press("e", "e, Enter back")
        assert watched.press("q", GIVEN_BACK).endswith(GIVEN_BACK)
        assert (process.wait(timeout=stretched(20)), watched.is_given_back) == (0, True)


def test_a_new_size_is_drawn(watched: Watched) -> None:
    """Also one in which hardly anything fits."""
    with watched.running as process:
        watched.press("", KEYS)
        for rows in (40, 6, 1):
            watched.resize(rows)
            page = watched.press("", KEYS).rpartition("\x1b[H\x1b[J")[2]
            assert page.count("\n") == rows - 1
        watched.press("q", GIVEN_BACK)
        assert process.wait(timeout=stretched(20)) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_gives_the_terminal_back(watched: Watched, number: int, code: int) -> None:
    with watched.running as process:
        watched.press("", KEYS)
        process.send_signal(number)
        assert watched.press("", GIVEN_BACK).endswith(GIVEN_BACK)
        assert (process.wait(timeout=stretched(20)), watched.is_given_back) == (code, True)


def test_who_stops_it_has_the_terminal_meanwhile(watched: Watched) -> None:
    with watched.running as process:
        watched.press("", KEYS)
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        watched.press("", GIVEN_BACK)
        assert watched.is_given_back
        process.send_signal(signal.SIGCONT)
        watched.press("", TAKEN)
        watched.press("q", GIVEN_BACK)
        assert (process.wait(timeout=stretched(20)), watched.is_given_back) == (0, True)
