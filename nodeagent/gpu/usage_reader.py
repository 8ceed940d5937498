"""One look for users, shared by all who ask at the same time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nodeagent.errors import DriverError
from nodeagent.gpu.usage import UnknownUsers, UsageReading, UsageSource
from nodeagent.gpu.workers import Worker


class UsageReader:
    """Reads a source in a thread of its own.

    Looking through all processes takes long on a busy machine, and eight GPUs may want it before
    each of their steps. Whoever asks gets a reading that was begun after it asked, which the
    others who asked meanwhile get too.
    """

    def __init__(self, source: UsageSource, *, deadline: float) -> None:
        self._source = source
        self._deadline = deadline
        self._worker = Worker("the look for users")
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[UsageReading] | None = None

    async def read(self) -> UsageReading:
        """Who uses what now; a failure is a reading in which nothing is known."""
        if self._next is None:
            self._next = asyncio.create_task(self._read(), name="look for users")
        return await asyncio.shield(self._next)

    async def _read(self) -> UsageReading:
        async with self._reading:
            self._next = None
            try:
                return await self._worker.call(
                    self._source.read, what="looking for users", deadline=self._deadline
                )
            except DriverError as error:
                return UnknownUsers(error.message)

    async def close(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        self._worker.close()
