"""Where a program under test can listen without meeting another."""

from __future__ import annotations

import os


def own_host() -> str:
    """A loopback address that no other process of this machine listens at: a port of 127.0.0.1 that
    is free now may be taken before the program under test has it.
    """
    pid = os.getpid()
    return f"127.{pid >> 16}.{pid >> 8 & 255}.{pid & 255}"
