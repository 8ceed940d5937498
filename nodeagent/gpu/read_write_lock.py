"""Lets many in, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadWriteLock:
    """Ordinary work passes together; what must not meet any of it waits until all are out."""

    def __init__(self) -> None:
        self._inside = 0
        self._empty = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._one:
            self._open.clear()
            try:
                while self._inside:
                    self._empty.clear()
                    await self._empty.wait()
                yield
            finally:
                self._open.set()
