"""Settings of a daemon and its servers, and how the daemon reads the numbers: as C's scanf does.

Nearly everything means something that way. All of it was seen on the real programs of 535 and 550.
"""

from __future__ import annotations

import math
import os
import re

from nodeagent.simulation.mps import protocol
from nodeagent.simulation.mps.log_lines import Log

DEVICES = 32  # ordinals 0 to 31

_ULONG = (1 << 64) - 1
_INTEGER = re.compile(r"\s*([+-]?\d+)")
_FLOAT = re.compile(r"\s*([+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?))", re.IGNORECASE)


class Settings:
    """Thread percentage and memory limits: defaults of a daemon, or those of a server."""

    def __init__(self) -> None:
        self.percentage = 100.0
        self.limits: dict[int, int] = {}  # bytes by ordinal

    def reset(self) -> None:
        self.percentage = 100.0
        self.limits.clear()

    def copy(self) -> Settings:
        other = Settings()
        other.percentage = self.percentage
        other.limits = dict(self.limits)
        return other

    def to_json(self) -> protocol.Message:
        limits = [[device, size] for device, size in sorted(self.limits.items())]
        return {"percentage": self.percentage, "limits": limits}

    def take_environment(self, log: Log) -> None:
        """What is wrong there is ignored, and the log says so."""
        if text := os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
            wanted = percentage(text)
            if wanted is None:
                log("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]")
            else:
                self.percentage = wanted


def integer(text: str) -> int:
    """What `atoi` makes of it: 0 where there is no number."""
    found = _INTEGER.match(text)
    return int(found[1]) if found else 0


def limit(text: str) -> int:
    """Bytes of a memory limit; 0 clears it.

    Only G is known as a unit: all else is M, K and T too. What follows a whole number is dropped,
    so `1.5G` is 1 MiB. Negative numbers wrap around.
    """
    found = _INTEGER.match(text)
    if found is None:
        return 0
    unit = text[found.end() : found.end() + 1]
    return int(found[1]) << (30 if unit in ("g", "G") else 20) & _ULONG


def shown_limit(size: int) -> str:
    """As the daemon prints a limit in bytes: whole G from 1 G up, rounded down."""
    return f"{size >> 30}G" if size >> 30 else f"{size >> 20}M"


def device_and_limit(text: str) -> tuple[int, str]:
    """`DEV VALUE` as `%d %s` reads it: `0,1 5G` is device 0 with the value `,1`, a UUID device 0
    with none.
    """
    found = _INTEGER.match(text)
    if found is None:
        return 0, ""
    rest = text[found.end() :].split()
    return int(found[1]), rest[0] if rest else ""


def percentage(text: str) -> float | None:
    """A percentage in (0, 100], or None."""
    found = _FLOAT.match(text)
    value = float(found[1]) if found else math.nan
    return value if 0.0 < value <= 100.0 else None


def client_limits(text: str, devices: tuple[str, ...]) -> dict[int, int]:
    """Limits in bytes by ordinal from `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`: `0=1G,UUID=512MB`."""
    limits: dict[int, int] = {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        key = key.strip()
        if key in devices:
            limits[devices.index(key)] = limit(value)
        elif key.isascii() and key.isdigit():
            limits[int(key)] = limit(value)
    return {device: size for device, size in limits.items() if size}
