"""Waiting for work: to its end even when cancelled meanwhile, or no longer than so many seconds."""

import asyncio
from collections.abc import Awaitable
from math import inf
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


async def ends_within(seconds: float | None, work: Awaitable[object]) -> bool:
    """Whether the work ends in so many seconds (None: however many); else it is cancelled."""
    try:
        async with asyncio.timeout(None if seconds == inf else seconds):
            await work
    except TimeoutError:
        return False
    return True
