"""One look for users, shared by all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nodeagent.errors import DriverError
from nodeagent.gpu.usage import UnknownUsers, UsageReading, UsageSource
from nodeagent.gpu.workers import Worker

Reading = TypeVar("Reading")


class SharedLook(Generic[Reading]):
    """Calls `look`, one call after the other. Belongs to one event loop.

    A look takes long on a busy machine, and eight GPUs may want one before each of their steps.
    Whoever asks gets what a look found that was begun after it asked, and so do the others who
    asked meanwhile. `look` must bound its own time, and raise nothing.
    """

    def __init__(self, look: Callable[[], Awaitable[Reading]]) -> None:
        self._look = look
        self._looking = asyncio.Lock()
        self._next: asyncio.Task[Reading] | None = None
        self._tasks: set[asyncio.Task[Reading]] = set()

    async def result(self) -> Reading:
        """What a look found that was begun after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin(), name="look for users")
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _begin(self) -> Reading:
        async with self._looking:
            self._next = None
            return await self._look()

    async def close(self) -> None:
        """End what was asked for, begun or not."""
        self._next = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class UsageReader:
    """Reads a source in a thread of its own."""

    def __init__(self, source: UsageSource, *, deadline: float) -> None:
        self._source = source
        self._deadline = deadline
        self._worker = Worker("the look for users")
        self._shared = SharedLook(self._read)

    async def read(self) -> UsageReading:
        """Who uses what now; a failure is a reading in which nothing is known."""
        return await self._shared.result()

    async def _read(self) -> UsageReading:
        try:
            return await self._worker.call(
                self._source.read, what="looking for users", deadline=self._deadline
            )
        except DriverError as error:
            return UnknownUsers(error.message)

    async def close(self) -> None:
        await self._shared.close()
        self._worker.close()
