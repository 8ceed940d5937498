"""A driver in which calls hang, and their end."""

from __future__ import annotations

import asyncio

from nodeagent.gpu.driver import Driver

QUICK = 0.15  # seconds; a deadline for calls that hang


async def settled(driver: Driver) -> None:
    """Wait until calls that were let go have returned."""
    for _ in range(100):
        if not any(worker.stuck for worker in driver._posts.workers):
            return
        await asyncio.sleep(0.01)
