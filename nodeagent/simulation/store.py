"""Who may look at a simulated node and change it, and when.

With a state file the node outlives the process and is shared: every look at it first takes over
what other processes wrote; every change is written at once, under the file's lock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from nodeagent.errors import UsageError
from nodeagent.processes import Hidden, ProcessIdentity, identify, is_gone
from nodeagent.simulation.codes import Refused
from nodeagent.simulation.state import NodeState, Process
from nodeagent.simulation.state_file import StateFile

_OTHERS_INTERVAL = 0.05  # seconds, while a call waits for something
_PROCESSES_INTERVAL = 0.002  # seconds: a look into /proc costs more than most calls


class Store:
    """What a node remembers. Safe for several threads.

    `state` is replaced when another process changed it; `take_over` then makes it the node's, and
    raises UsageError or Refused for what cannot be.
    """

    def __init__(
        self, path: Path | None, state: NodeState, take_over: Callable[[NodeState], None]
    ) -> None:
        self.state = state
        self.lock = threading.RLock()
        self.changing = threading.Condition(self.lock)
        self.closed = False
        self._take_over = take_over
        self._held = False  # by a thread that changes the node
        self._reaped = 0.0
        self._file = None if path is None else StateFile(path)

    def close(self) -> None:
        """Let go of the state file and of every call that still hangs."""
        with self.changing:
            self.closed = True
            if self._file is not None:
                self._file.close()
            self.changing.notify_all()

    @contextmanager
    def looks(self) -> Iterator[None]:
        """Hold the node still, as it is now, to look at it."""
        with self.changing:
            self.catch_up()
            yield

    @contextmanager
    def changes(self) -> Iterator[None]:
        """Hold the node still to change it; what was changed is written, errors or not."""
        with self.changing:
            if self._held:  # the outermost one writes
                yield
                return
            file = None if self.closed else self._file
            self._held = True
            try:
                with nullcontext() if file is None else file.locked():
                    self.catch_up()
                    try:
                        yield
                    finally:
                        if file is not None and self.state.gpus:
                            file.write(self.state)
            finally:
                self._held = False
                self.changing.notify_all()

    def wait(self, seconds: float | None) -> None:
        """Wait, with the lock held, until something changed or the time is over."""
        if self._file is not None:
            often = _OTHERS_INTERVAL
            seconds = often if seconds is None else min(seconds, often)
        self.changing.wait(seconds)
        self.catch_up()

    def catch_up(self) -> None:
        """Take over what other processes wrote, and let processes that ended go."""
        if self._file is not None and not self.closed and self._file.stale():
            state = self._file.read()
            if state is not None:
                try:
                    self._take_over(state)
                except (UsageError, Refused) as error:
                    raise self._file.broken(str(error)) from error
                self.state = state
                self.changing.notify_all()
        self._reap()

    def followed(self) -> list[Process]:
        """The processes on the node's devices that are processes of this machine."""
        return [p for gpu in self.state.gpus for p in gpu.processes if p.started is not None]

    def _reap(self) -> None:
        """Real processes that ended free their devices."""
        now = time.monotonic()
        if now - self._reaped < _PROCESSES_INTERVAL:
            return
        self._reaped = now
        for process in self.followed():
            if is_gone(ProcessIdentity(process.pid, process.started or 0)):
                for gpu in self.state.gpus:
                    gpu.processes = [p for p in gpu.processes if p is not process]

    # --- who has NVML initialised -------------------------------------------------------------

    def session_opened(self) -> None:
        """This process has."""
        if self._file is not None:
            self._file.open_session()

    def session_closed(self) -> bool:
        """This process has not any more; whether no process has."""
        return self._file is None or self._file.close_session()

    def nvml_is_open_elsewhere(self) -> bool:
        return self._file is not None and self._file.others_open()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    found = identify(pid)
    return None if found is None or isinstance(found, Hidden) else found.create_time


def uptime() -> float:
    """The same for all processes of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
