"""Starts of one GPU's daemons, side by side, each to its end whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self


class Starts:
    """Usable inside `async with`, which is left when all have come to their ends."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._group.__aexit__(kind, error, traceback)

    def begin(self, start: Coroutine[object, object, None]) -> None:
        self._tasks.append(self._group.create_task(start))

    async def ended(self) -> None:
        """Those that were begun so far."""
        if self._tasks:
            await asyncio.wait(self._tasks)
