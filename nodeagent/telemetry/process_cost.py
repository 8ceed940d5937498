"""What the agent's own process costs, as the kernel counts it."""

from __future__ import annotations

import resource
from functools import lru_cache

import psutil

from nodeagent.metrics.agent_metrics import ProcessCost


def process_cost() -> ProcessCost | None:
    """Read now, in some 100 µs; None where /proc is not mounted."""
    try:
        own = psutil.Process()
        times, memory = own.cpu_times(), own.memory_info()
        most, _ = own.rlimit(resource.RLIMIT_NOFILE)
        return ProcessCost(
            cpu_seconds=times.user + times.system,
            resident=memory.rss,
            virtual=memory.vms,
            open_files=own.num_fds(),
            most_files=most,
            started=_started(),
        )
    except (psutil.Error, OSError):
        return None


@lru_cache(maxsize=1)
def _started() -> float:
    """In Unix time, once: it would move with the wall clock, and look like another start."""
    return psutil.Process().create_time()
