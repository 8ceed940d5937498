"""Simulated nodes, the driver on top of them, and steps made from what was observed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode, simulated


@pytest.fixture(autouse=True)
def _threads_are_gone(_nothing_leaks: None) -> Iterator[None]:
    """Wait until the kernel, too, has done with threads that have ended.

    The look for left processes goes through the threads in /proc, where one may vanish under it.
    """
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0, deadline - time.monotonic()))
    while len(os.listdir("/proc/self/task")) > threading.active_count():  # noqa: PTH208
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two simulated H100, MIG off."""
    with simulated("h100-80gb:2") as node:
        yield node


@pytest.fixture
async def driver(node: SimulatedNode) -> AsyncIterator[Driver]:
    """The driver of that node, with short deadlines."""
    async with Driver(observe_deadline=2, step_deadline=2) as driver:
        yield driver
