"""A driver in which calls hang, and their end."""

from __future__ import annotations

import asyncio

from nodeagent.gpu.driver import Driver

QUICK = 0.4  # seconds; a deadline for calls that hang, which those that do not keep


async def settled(driver: Driver) -> None:
    """Wait until calls that were let go have returned."""
    async with asyncio.timeout(30):
        while any(worker.stuck for worker in driver._posts.workers):
            await asyncio.sleep(0.01)
