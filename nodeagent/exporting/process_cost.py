"""What the agent's own process costs, as the kernel counts it."""

from __future__ import annotations

import os
import resource
from functools import lru_cache
from pathlib import Path

from nodeagent.metrics.agent_metrics import ProcessCost

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_cost(proc: Path = Path("/proc")) -> ProcessCost | None:
    """Read now, in some 50 µs; None where the kernel does not tell it."""
    try:
        # The name of the program stands in brackets and may have blanks in it.
        fields = (proc / "self/stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir(proc / "self/fd"))  # noqa: PTH208 - only their number is wanted
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessCost(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        resident=int(fields[21]) * _PAGE,
        virtual=int(fields[20]),
        open_files=files,
        most_files=most,
        started=_boot(proc) + int(fields[19]) / _TICKS,
    )


@lru_cache(maxsize=1)
def _boot(proc: Path) -> int:
    """When the machine was started, in Unix time; a long text on a machine with many processors."""
    return next(
        int(line.split()[1])
        for line in (proc / "stat").read_text().splitlines()
        if line.startswith("btime ")
    )
