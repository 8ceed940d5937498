"""What all daemons of a node have in common."""

from collections.abc import Callable
from pathlib import Path

from nodeagent.mps.control import ControlClient
from nodeagent.mps.files.log import LogWatch
from nodeagent.mps.launch.launcher import Launcher
from nodeagent.mps.lifecycle.model import Report
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.settings import MpsSettings
from nodeagent.structs import Struct, field

START_TIMEOUT = 60.0  # seconds that a caller waits for a daemon to be Ready

Check = Callable[[DaemonSpec], tuple[str, ...]]


class MpsContext(Struct, frozen=True):
    """What all supervisors share. `check` says what else keeps a daemon from Ready, `report` gets
    what people may want to know of a device, `changed` is called when something is different, and
    `jitter` gives numbers from 0 up to 1. With `private_shm` each device has its own /dev/shm.
    Seconds: `served_interval` between two questions to a daemon that has a server or a blocked
    client or drains, `start_timeout` for a caller who waits for Ready.
    """

    run_dir: Path
    programs: Programs
    launcher: Launcher
    settings: MpsSettings
    check: Check
    report: Callable[[str, Report], None]
    changed: Callable[[], None]
    jitter: Callable[[], float]
    private_shm: bool = False
    served_interval: float = 5.0
    start_timeout: float = START_TIMEOUT
    watch: LogWatch = field(default_factory=LogWatch)

    def control_client(self, pipe_directory: str, log_directory: str) -> ControlClient:
        return ControlClient(
            self.programs,
            pipe_directory=pipe_directory,
            log_directory=log_directory,
            deadline=self.settings.answer_deadline,
            jitter=self.jitter,
        )
