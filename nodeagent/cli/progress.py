"""The progress of `apply` on a line of the terminal, and its wait for the users of GPUs."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.processes import ProcessWatch
from nodeagent.views.text import user_words, users

_START_OF_LINE, _CLEAR_TO_END = "\r", "\x1b[K"


class ProgressLine:
    """A line on standard error, if that is a terminal that can rewrite one: the steps that run, or
    who is waited for. What is written to the same terminal has to call `clear` before.
    """

    def __init__(self) -> None:
        self._running: dict[str, None] = {}
        able = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._stream = sys.stderr if able else None

    def begin(self, step: str) -> None:
        self._running[step] = None
        self.show(", ".join(self._running))

    def end(self, step: str) -> None:
        self._running.pop(step, None)
        self.show(", ".join(self._running))

    def clear(self) -> None:
        self.show("")

    def show(self, text: str) -> None:
        room = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= room else f"{text[: max(room - 3, 0)]}..."
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the terminal is gone; the work goes on
                self._stream.write(f"{_START_OF_LINE}{shown}{_CLEAR_TO_END}")
                self._stream.flush()


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
