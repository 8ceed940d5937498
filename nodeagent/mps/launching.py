"""How daemons are started so that they outlive the agent: as its children, or as services of
systemd.
"""

from __future__ import annotations

from typing import Protocol

from nodeagent.mps.child_launcher import ChildLauncher
from nodeagent.mps.daemon_command import shm_directory
from nodeagent.mps.process import DaemonProcess
from nodeagent.mps.service_launcher import ServiceLauncher
from nodeagent.mps.shares import DaemonSpec

__all__ = ["ChildLauncher", "Launcher", "ServiceLauncher", "shm_directory"]


class Launcher(Protocol):
    """One of the ways."""

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """Start a daemon as `spec` says; its directories have been made. Raises StartError."""
        ...
