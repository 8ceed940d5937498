"""A condition variable for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LocklessCondition:
    """Like asyncio.Condition, but without a lock: what notifies is not async, and nothing else
    runs between a change and its notification.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until it is true; returns at once if it is."""
        while not predicate():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await change
            finally:
                self._waiting.discard(change)

    def notify_all(self) -> None:
        """Have all waiters evaluate their predicates again."""
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def close(self) -> None:
        """Cancel all waiters."""
        for change in self._waiting:
            change.cancel()
