"""An event loop whose clock stands still while there is work and skips idle time.

A rule about minutes takes milliseconds, and a busy machine cannot break it: time passes only when
every task waits. Sockets are real; what another task of the loop wrote arrives before any timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

# Real seconds to wait before time is skipped, for what was written to a socket and has not arrived.
_ARRIVING = 0.001


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at 1000 s. Threads of executors count as work; so does nothing outside the loop."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._at_work = 0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self._now

    def skip(self, seconds: float) -> None:
        """Nothing happens for so long."""
        self._now += seconds

    @property
    def is_waiting(self) -> bool:
        """Whether no thread works for a task."""
        return self._at_work == 0

    def run_in_executor(  # type: ignore[override]  # the stub's type variables tell nothing here
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._at_work += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._at_work -= 1


class _Skipping(selectors.DefaultSelector):
    """Looks at the sockets; where nothing happens there, the time until the next timer is over."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if timeout is None or not self._loop.is_waiting:
            return super().select(None)
        found = super().select(_ARRIVING)
        if not found:
            self._loop.skip(timeout)
        return found
