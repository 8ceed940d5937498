"""How daemons are started so that they outlive the agent: as its children, or as services of
systemd.
"""

from __future__ import annotations

from typing import Protocol

from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.command import shm_directory
from nodeagent.mps.launch.process import DaemonProcess
from nodeagent.mps.launch.service import ServiceLauncher
from nodeagent.mps.shares import DaemonSpec

__all__ = ["ChildLauncher", "Launcher", "ServiceLauncher", "shm_directory"]


class Launcher(Protocol):
    """One of the ways."""

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """Start a daemon as `spec` says; its directories have been made. Raises StartError."""
        ...
