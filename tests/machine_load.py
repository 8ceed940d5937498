"""How long work takes, and waiting for it, while others want this machine's processors, too."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def stretched(seconds: float) -> float:
    """How long that much work may take, by the load of the last minutes: a limit in seconds counts
    what the machine could do.
    """
    last_minute, last_five, _ = os.getloadavg()
    return seconds * max(1.0, max(last_minute, last_five) / len(os.sched_getaffinity(0)))


async def until(so: Callable[[], object], within: float = 60.0) -> None:
    """Wait until it is so; fail where it is not within that time, as far as this machine works.

    What takes a minute is looked at every second: in virtual time a look costs the same real time,
    however little passes.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    while not so():
        assert clock() - begun < stretched(within), "it did not happen"
        await asyncio.sleep(max(0.003, (clock() - begun) / 50))


def wait_until(so: Callable[[], T], *, said: Callable[[], object] = str, within: float = 60.0) -> T:
    """The same without an event loop; gives what it is then. `said` explains why it is not so."""
    begun = time.monotonic()
    while not (found := so()):
        passed = time.monotonic() - begun
        assert passed < stretched(within), f"it did not happen; {said()}"
        time.sleep(min(max(0.003, passed / 50), 0.1))
    return found


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel it, and wait until that has ended it."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task
