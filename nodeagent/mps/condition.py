"""Waiting until something is so, looked at whenever something may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Of one thing, in one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def until(self, so: Callable[[], bool]) -> None:
        """Until that is so; at once if it is."""
        while not so():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await change
            finally:
                self._waiting.discard(change)

    def wake(self) -> None:
        """Something may have changed."""
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def close(self) -> None:
        """Nothing will change any more; whoever waits is cancelled."""
        for change in self._waiting:
            change.cancel()
