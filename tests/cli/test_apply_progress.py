import asyncio
import contextlib
import io
import re
import threading
from collections.abc import Callable

import pytest

from nodeagent.cli.progress import wait_for_blockers
from tests.cli.conftest import Program


class Terminal(io.StringIO):
    """Standard error as a terminal; calls `act` once, when `text` is on it."""

    def __init__(self, text: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._text = text
        self.acting = threading.Thread(target=act)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._text in text and self.acting.ident is None:
            self.acting.start()
        return super().write(text)


def test_a_line_is_rewritten_and_taken_away(h100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 4}}"))
    h100.on("simulate", "occupy", "0:4", "--command", "tr\x1b[2Jain\n")
    h100.on("simulate", "fault", "nvmlDeviceCreateGpuInstance*", "--latency", "0.6")

    terminal = Terminal("waiting for the users of GPU 0 (pid ", h100.release)
    with contextlib.redirect_stderr(terminal):
        done = h100.on(
            "apply", "-f", h100.plan("{devices: [0], mig: {7g.80gb: 1}}"), "--wait", "60"
        )
    terminal.acting.join()
    assert done.code == 0, done.out
    assert "\r" not in done.out
    shown = terminal.getvalue()
    assert re.search(r"\rwaiting for the users of GPU 0 \(.*\(tr\?\[2J.*, at most \d+ s\x1b", shown)
    assert "\rGPU 0 create 7g.80gb at 0\x1b[K" in shown
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown


def test_a_wait_that_ends_leaves_no_line(h100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 4}}"))
    h100.on("simulate", "occupy", "0:4")
    terminal = Terminal("anything", lambda: None)
    with contextlib.redirect_stderr(terminal):
        plan = h100.plan("{devices: [0], mig: {7g.80gb: 1}}")
        assert h100.on("apply", "-f", plan, "--wait", "0.5").code == 3
    assert "\rwaiting for the users of GPU 0" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_line_that_cannot_be_rewritten(h100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    h100.on("simulate", "fault", "nvmlDeviceCreateGpuInstance*", "--latency", "0.3")
    terminal = Terminal("anything", lambda: None)
    with contextlib.redirect_stderr(terminal):
        assert h100.on("apply", "-f", h100.plan("{devices: [0], mig: {7g.80gb: 1}}")).code == 0
    assert terminal.getvalue() == ""


async def slept(limit: float, stop: asyncio.Event) -> tuple[float, bool]:
    """Seconds until the next look at the GPUs, and whether there is one."""
    clock = asyncio.get_running_loop().time
    began = clock()
    again = await wait_for_blockers(began + limit, stop)
    return round(clock() - began, 3), again


@pytest.mark.virtual_time
async def test_the_gpus_are_looked_at_every_second_until_the_limit() -> None:
    stop = asyncio.Event()
    assert await slept(60, stop) == (1.0, True)
    assert await slept(0.3, stop) == (0.3, True)
    assert await slept(0.0, stop) == (0.0, False)
    asyncio.get_running_loop().call_later(0.2, stop.set)
    assert await slept(60, stop) == (0.2, False)
    assert await slept(60, stop) == (0.0, False)
