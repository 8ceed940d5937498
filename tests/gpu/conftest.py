"""Simulated nodes, the driver on top of them, and steps made from what was observed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _threads_are_gone(_nothing_leaks: None) -> Iterator[None]:
    """Wait until the kernel, too, has done with threads that have ended.

    The look for left processes goes through the threads in /proc, where one may vanish under it.
    """
    yield
    deadline = time.monotonic() + 0.5
    while len(os.listdir("/proc/self/task")) > threading.active_count():  # noqa: PTH208
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
