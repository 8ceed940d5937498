"""The progress of `apply` on a line of the terminal, and its wait for the users of GPUs."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.processes import ProcessWatch
from nodeagent.views.text import user_words, users

_DRAW_INTERVAL = 0.2  # seconds between two drawings; what is over before is not drawn at all
_START_OF_LINE, _CLEAR_TO_END = "\r", "\x1b[K"


class ProgressLine:
    """A line with the steps that run and their times, how many are over, and the time of all.

    `stream` None: nothing is drawn. `clock` gives seconds. What is written to the same terminal
    has to call `clear` before.
    """

    def __init__(
        self, stream: TextIO | None, clock: Callable[[], float], columns: Callable[[], int]
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._columns = columns
        self._began = clock()
        self._running: dict[str, float] = {}  # since when
        self._waiting_for, self._deadline = "", 0.0
        self._over = self._total = 0
        self._drawn = False

    def expect(self, steps: int) -> None:
        """Add so many steps that are to come, and end a wait that was shown."""
        self._total += steps
        self._waiting_for = ""

    def begin(self, step: str) -> None:
        self._running[step] = self._clock()
        self._total = max(self._total, self._over + len(self._running))  # rollbacks add some

    def end(self, step: str) -> None:
        """Count a step that ended, or is not begun any more."""
        self._running.pop(step, None)
        self._over += 1

    def wait_for(self, whom: str, deadline: float) -> None:
        """Show a wait until the deadline, by the clock, unless steps follow before."""
        self._waiting_for, self._deadline = whom, deadline

    def line(self) -> str:
        now = self._clock()
        over = f"{self._over} of {self._total} steps" if self._total else ""
        what = "reading the GPUs"
        if self._running:
            what = ", ".join(f"{s} ({now - since:.1f} s)" for s, since in self._running.items())
        elif self._waiting_for:
            left = max(self._deadline - now, 0.0)
            what = f"waiting for {self._waiting_for}, at most {left:.0f} s more"
        return "; ".join(part for part in (over, f"{now - self._began:.0f} s: {what}") if part)

    def clear(self) -> None:
        """Take the line away until it is drawn again."""
        if self._drawn:
            self._write(_START_OF_LINE + _CLEAR_TO_END)
            self._drawn = False

    @asynccontextmanager
    async def drawn(self) -> AsyncIterator[None]:
        """Draw it again and again, and take it away in the end."""
        if self._stream is None:
            yield
            return
        drawing = asyncio.create_task(self._draw(), name="draw the progress")
        try:
            yield
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing
            self.clear()

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(_DRAW_INTERVAL)
            text, room = self.line(), self._columns() - 1
            shown = text if len(text) <= room else f"{text[: max(room - 3, 0)]}..."
            self._write(f"{_START_OF_LINE}{shown}{_CLEAR_TO_END}")
            self._drawn = True

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the terminal is gone; the work goes on
                self._stream.write(text)
                self._stream.flush()


def on_terminal(clock: Callable[[], float]) -> ProgressLine:
    """A line on standard error, if that is a terminal that can rewrite one."""
    stream = sys.stderr
    able = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return ProgressLine(stream if able else None, clock, lambda: _columns_of(stream))


def _columns_of(stream: TextIO) -> int:
    """The width of this terminal; `shutil` alone would ask standard output, which may be none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


# A process may also let go of a GPU without ending, which the kernel does not report.
_RECHECK_INTERVAL = 2.0  # seconds


async def wait_for_blockers(plan: NodePlan, deadline: float, stop: asyncio.Event) -> bool:
    """Wait until a user may be gone; False when `deadline` (loop time) has passed or on a stop.

    The kernel reports a process' end; everything else is looked at again every two seconds.
    """
    remaining = deadline - asyncio.get_running_loop().time()
    if remaining <= 0 or stop.is_set():
        return False
    wake = asyncio.Event()
    watch = ProcessWatch(wake.set, fallback=_RECHECK_INTERVAL, fallback_limit=_RECHECK_INTERVAL)
    watch.watch(_pids(plan))
    waiters = [asyncio.ensure_future(event.wait()) for event in (wake, stop)]
    try:
        await asyncio.wait(
            waiters,
            timeout=min(remaining, _RECHECK_INTERVAL),
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        watch.close()
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return not stop.is_set()


def blocker_words(plan: NodePlan) -> str:
    """`the users of GPU 0 (pid 4711 (train))`, for each GPU that is blocked."""
    blocked = (gpu.before for gpu in plan.gpus if gpu.verdict is Verdict.BLOCKED)
    return ", ".join(f"the users of GPU {gpu.index} ({user_words(gpu)})" for gpu in blocked)


def _pids(plan: NodePlan) -> set[int]:
    blocked = [gpu.before for gpu in plan.gpus if gpu.verdict is Verdict.BLOCKED]
    return {user.pid for gpu in blocked for user in users(gpu)}
