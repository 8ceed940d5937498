"""How long work takes, and waiting for it, while others want this machine's processors, too."""

import asyncio
import os
import time
from collections.abc import Callable


def stretched(seconds: float) -> float:
    """How long that much work may take, by the load of the last minutes: a limit in seconds counts
    what the machine could do.
    """
    last_minute, last_five, _ = os.getloadavg()
    return seconds * max(1.0, max(last_minute, last_five) / len(os.sched_getaffinity(0)))


async def until(so: Callable[[], object], within: float = 60.0) -> None:
    """Wait until it is so; fail where it is not within that time, as far as this machine works."""
    end = time.monotonic() + stretched(within)
    while not so():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)
