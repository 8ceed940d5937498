"""What must meet nothing else waits for all others, and they for it."""

from __future__ import annotations

import asyncio

from nodeagent.gpu.pool import ReadWriteLock
from tests.machine_load import stretched


async def test_the_exclusive_holder_meets_no_other() -> None:
    """Holders that are inside are out before, and those that come later wait until after."""
    lock, seen = ReadWriteLock(), list[str]()

    async def together(name: str, seconds: float) -> None:
        async with lock.shared():
            seen.append(f"{name} in")
            await asyncio.sleep(seconds)
            seen.append(f"{name} out")

    async def alone() -> None:
        async with lock.exclusive():
            seen.append("alone in")
            await asyncio.sleep(0.02)
            seen.append("alone out")

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(together(name, 0.02))
        await asyncio.sleep(0)
        group.create_task(alone())
        await asyncio.sleep(0)
        group.create_task(together("c", 0))
    order = ["a in", "b in", "a out", "b out", "alone in", "alone out", "c in", "c out"]
    assert seen == order


async def test_a_cancelled_wait_leaves_the_lock_free() -> None:
    """Otherwise one cancellation would stop the agent for good."""
    lock = ReadWriteLock()
    async with lock.shared():
        waiting = asyncio.create_task(lock.exclusive().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(stretched(30)), lock.exclusive():
        pass
    async with asyncio.timeout(stretched(30)), lock.shared():
        pass
