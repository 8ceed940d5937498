"""What all supervisors of a node have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.mps.control.client import ControlClient
from nodeagent.mps.files.log_watch import LogWatch
from nodeagent.mps.launch.launchers import Launcher
from nodeagent.mps.launch.process import Programs
from nodeagent.mps.lifecycle.model import Policy, Report
from nodeagent.mps.monitor import Check
from nodeagent.mps.timing import Timing


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`check` tells what else must be so for Ready and is not; `report` gets what people may want
    to know of a device, `changed` is called when something is different; `chance` gives numbers
    from 0 up to 1.
    """

    run_dir: Path
    programs: Programs
    launcher: Launcher
    policy: Policy
    timing: Timing
    check: Check
    report: Callable[[str, Report], None]
    changed: Callable[[], None]
    chance: Callable[[], float]
    watch: LogWatch

    def control_client(self, pipe_directory: str, log_directory: str) -> ControlClient:
        """The only way to the daemon there."""
        return ControlClient(
            self.programs.control,
            pipe_directory=pipe_directory,
            log_directory=log_directory,
            path=self.programs.path,
            deadline=self.timing.answer,
            chance=self.chance,
        )
