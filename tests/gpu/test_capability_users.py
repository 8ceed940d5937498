"""A search for users of capability files is shared by all that ask before it begins."""

from __future__ import annotations

import asyncio
import threading
import time

from nodeagent.gpu.capability_files import CapabilityHolders, CapabilityUsers
from nodeagent.gpu.users import MigDeviceRef, UsageReading

ANY_DEVICE = MigDeviceRef("GPU-1", 0, 1, 0)


class Source:
    """Counts the looks; each takes a while."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.begun: list[float] = []

    def read(self) -> UsageReading:
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        return CapabilityHolders()


async def test_many_who_ask_at_once_cost_one_look() -> None:
    """Eight GPUs observed side by side need not search all processes eight times."""
    source = Source()
    reader = CapabilityUsers(source.read, deadline=30)
    await asyncio.gather(*(reader.ask() for _ in range(8)))
    assert len(source.begun) == 1
    await reader.close()


async def test_no_caller_gets_a_look_that_began_before_it_asked() -> None:
    """A process may have come in between, so who asks later gets the next one."""
    source = Source(0.05)
    reader = CapabilityUsers(source.read, deadline=30)
    first = asyncio.create_task(reader.ask())
    await asyncio.sleep(0.02)
    asked = time.monotonic()
    await asyncio.gather(*(reader.ask() for _ in range(3)))
    assert len(source.begun) == 2
    assert source.begun[1] > asked
    await first
    await reader.close()


async def test_a_look_that_hangs_is_a_reading_in_which_nothing_is_known() -> None:
    """Then everything counts as in use, and nothing is destroyed."""
    held = threading.Event()

    def hang() -> UsageReading:
        held.wait()
        return CapabilityHolders()

    reader = CapabilityUsers(hang, deadline=0.05)
    usage = (await reader.ask()).users(ANY_DEVICE)
    assert not usage.known
    assert "did not return" in usage.reason
    assert not (await reader.ask()).users(ANY_DEVICE).known
    held.set()
    await reader.close()


async def test_cancelling_one_who_asks_leaves_the_others_their_answer() -> None:
    """The look is shared, its cancellation is not."""
    reader = CapabilityUsers(Source().read, deadline=30)
    one, other = asyncio.create_task(reader.ask()), asyncio.create_task(reader.ask())
    await asyncio.sleep(0.005)
    one.cancel()
    assert (await other).users(ANY_DEVICE).known
    await reader.close()
