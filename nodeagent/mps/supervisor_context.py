"""What all supervisors of a node have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.mps.control.client import ControlClient
from nodeagent.mps.files.log import LogWatch
from nodeagent.mps.launch.command import Launcher
from nodeagent.mps.lifecycle.model import Report
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.settings import MpsSettings

Check = Callable[[DaemonSpec], Awaitable[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and bytes of a log.

    `answer`: for a daemon to answer. `check`: between two questions to a daemon when nothing
    happens, `check_served` while it has a server, a blocked client or drains. `grace`: between
    the steps of ending an orphan. `start`: how long a caller waits for Ready.
    """

    answer: float
    check: float
    grace: float
    log_size: int
    check_served: float = 5.0
    start: float = 60.0

    def until_next_look(self, *, served: bool) -> float:
        return min(self.check, self.check_served) if served else self.check


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """`check` gives what else keeps it from Ready, in words; `report` gets what people may want
    to know of a device, `changed` is called when something is different; `jitter` gives numbers
    from 0 up to 1.
    """

    run_dir: Path
    programs: Programs
    launcher: Launcher
    settings: MpsSettings
    timing: Timing
    check: Check
    report: Callable[[str, Report], None]
    changed: Callable[[], None]
    jitter: Callable[[], float]
    watch: LogWatch

    def control_client(self, pipe_directory: str, log_directory: str) -> ControlClient:
        """The only way to the daemon there."""
        return ControlClient(
            self.programs,
            pipe_directory=pipe_directory,
            log_directory=log_directory,
            deadline=self.timing.answer,
            jitter=self.jitter,
        )
