"""Looks at the hardware are given up when the agent stops: they change nothing.

So it does not wait for a driver that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_LEAVING = 1.0  # seconds that a look may still take once told to stop


class GivenUp(Exception):
    """The agent stops, and did not wait for the end of a look."""


class GivingUp:
    """One look at a time."""

    def __init__(self) -> None:
        self._stopping = False
        self._looking: asyncio.Timeout | None = None

    def stop(self) -> None:
        """From now on looks, the running one too, have little time."""
        self._stopping = True
        if self._looking:
            _hurry(self._looking)

    @asynccontextmanager
    async def at_stop(self) -> AsyncIterator[None]:
        """Around a look; raises GivenUp when its time is over."""
        try:
            async with asyncio.timeout(None) as self._looking:
                if self._stopping:
                    _hurry(self._looking)
                yield
        except TimeoutError as error:
            raise GivenUp from error
        finally:
            self._looking = None


def _hurry(looking: asyncio.Timeout) -> None:
    looking.reschedule(asyncio.get_running_loop().time() + _LEAVING)
