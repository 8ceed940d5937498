"""A driver in which calls hang, and their end."""

from __future__ import annotations

import asyncio

from nodeagent.gpu.driver import Driver
from tests.machine_load import stretched

QUICK = 0.4  # seconds; a deadline that only calls that hang exceed


async def settled(driver: Driver) -> None:
    """Wait until calls that were let go have returned."""
    async with asyncio.timeout(stretched(30)):
        while any(worker.stuck for worker in driver.pool._workers):
            await asyncio.sleep(0.01)
