"""Work that may not be cut short: cancellation takes effect when it has ended."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def uncancelled(work: Awaitable[_Result]) -> _Result:
    """What the work returns or raises; that is lost where the caller was cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    if await end_of(task):
        task.exception()  # retrieved, so that asyncio does not log it
        raise asyncio.CancelledError
    return task.result()


async def end_of(running: asyncio.Future[Any]) -> bool:
    """Wait for the end of `running` whatever happens; True if cancelled meanwhile."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled
