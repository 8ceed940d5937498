"""Work that may not be cut short."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.uncancelled import uncancelled


async def test_work_ends_however_often_its_caller_is_cancelled() -> None:
    """And only then the caller does."""
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(uncancelled(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_what_comes_of_the_work_is_the_callers() -> None:
    """A value, or an error."""
    assert await uncancelled(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await uncancelled(asyncio.to_thread(divmod, 1, 0))
