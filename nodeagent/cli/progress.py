"""The progress of `apply` on a line of the terminal, and its wait for the users of GPUs."""

import asyncio
import os
import shutil
import sys
from contextlib import suppress

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.text import printable
from nodeagent.views.text import user_words
from nodeagent.waiting import ends_within

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
        text = printable(text)  # programs name themselves
        shown = text if len(text) <= room else f"{text[: max(room - 3, 0)]}..."
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the terminal is gone; the work goes on
                self._stream.write(f"{_START_OF_LINE}{shown}{_CLEAR_TO_END}")
                self._stream.flush()


_RECHECK_INTERVAL = 1.0  # seconds


async def wait_for_blockers(deadline: float, stop: asyncio.Event) -> bool:
    """Wait until the GPUs are to be looked at again; False when `deadline` (loop time) has passed
    or on a stop.
    """
    remaining = deadline - asyncio.get_running_loop().time()
    if remaining <= 0:
        return False
    return not await ends_within(min(remaining, _RECHECK_INTERVAL), stop.wait())


def blocker_words(plan: NodePlan) -> str:
    """`the users of GPU 0 (pid 4711 (train))`, for each GPU that is blocked."""
    blocked = (gpu.before for gpu in plan.gpus if gpu.verdict is Verdict.BLOCKED)
    return ", ".join(f"the users of GPU {gpu.index} ({user_words(gpu)})" for gpu in blocked)
