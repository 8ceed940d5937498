"""Real processes of this machine that sit on a simulated device."""

from __future__ import annotations

from pathlib import Path

NO_REAL_PID = 4_200_000  # above Linux's limit for process ids (2^22)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def ended(pid: int, started: int | None) -> bool:
    """Whether a followed process is gone, or its pid belongs to another one by now."""
    return started is not None and start_time(pid) != started
