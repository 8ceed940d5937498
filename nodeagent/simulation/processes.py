"""Real processes of this machine that sit on a simulated device."""

from __future__ import annotations

from nodeagent.processes import Hidden, ProcessIdentity, identify, is_gone

NO_REAL_PID = 4_200_000  # above Linux's limit for process ids (2^22)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    found = identify(pid)
    return None if found is None or isinstance(found, Hidden) else found.create_time


def ended(pid: int, started: int | None) -> bool:
    """Whether a followed process is gone, or its pid belongs to another one by now."""
    return started is not None and is_gone(ProcessIdentity(pid, started))
