"""What a server starts with: thread percentage, priority and memory limits."""

from __future__ import annotations

import os

from nodeagent.simulation.mps import protocol, values
from nodeagent.simulation.mps.log_lines import Log


class Settings:
    """Defaults of a daemon, or what one server has."""

    def __init__(self) -> None:
        self.percentage = 100.0
        self.priority = 0
        self.limits: dict[int, int] = {}  # bytes by ordinal

    def reset(self) -> None:
        self.percentage, self.priority = 100.0, 0
        self.limits.clear()

    def copy(self) -> Settings:
        other = Settings()
        other.percentage, other.priority = self.percentage, self.priority
        other.limits = dict(self.limits)
        return other

    def to_json(self) -> protocol.Message:
        limits = [[device, size] for device, size in sorted(self.limits.items())]
        return {"percentage": self.percentage, "priority": self.priority, "limits": limits}

    def take_environment(self, log: Log) -> None:
        """From the environment; what is wrong there is ignored, and said in the log."""
        if text := os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
            percentage = values.percentage(text)
            if percentage is None:
                log("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]")
            else:
                self.percentage = percentage
        if text := os.environ.get("CUDA_MPS_CLIENT_PRIORITY"):
            priority = values.integer(text)
            if priority not in (0, 1):
                log("CUDA_MPS_CLIENT_PRIORITY should be between [0,1]")
            else:
                self.priority = priority
