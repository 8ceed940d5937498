"""Which boot of the machine this is, and how long ago it was."""

from __future__ import annotations

import time
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.health.findings import Moment

_BOOT_ID = "proc/sys/kernel/random/boot_id"


def boot_id(root: Path = Path("/")) -> str:
    """What is another after each reboot; raises NodeagentError."""
    try:
        return (root / _BOOT_ID).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise NodeagentError(f"{root / _BOOT_ID} cannot be read: {error}") from error


def now() -> Moment:
    """This moment: in seconds since boot, suspended ones included, and in the time of day."""
    return Moment(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
