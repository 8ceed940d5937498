"""What a process costs, as Linux counts it."""

from __future__ import annotations

import psutil


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time, in user mode and in the kernel, of all threads."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def resident(pid: int) -> int:
    """Bytes in memory."""
    return psutil.Process(pid).memory_info().rss
