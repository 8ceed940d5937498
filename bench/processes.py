"""What a process costs, as Linux counts it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def installed() -> Iterator[None]:
    """Processes started within it keep byte code, as those of an installed program do.

    Compiling it anew each time takes longer than most commands, and leaves gaps in the memory.
    """
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time, in user mode and in the kernel, of all threads."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def proportional(pid: int) -> int:
    """Bytes in memory; of pages that several processes have, its part alone (PSS)."""
    return int(psutil.Process(pid).memory_full_info().pss)


def resident(pid: int) -> int:
    """Bytes in memory."""
    return psutil.Process(pid).memory_info().rss
