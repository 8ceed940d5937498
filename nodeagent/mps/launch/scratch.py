"""A directory for daemons that nobody is to use; gone afterwards with whatever runs there."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from nodeagent.mps.pidfd import opened
from nodeagent.mps.processes import CONTROL, identify, processes_of

_PREFIX = "probe-"


class Scratch:
    """Makes one in `parent`, and takes away what is there of makers that were killed.

    Locks tell those apart from ones in use. Raises OSError; blocks for tens of milliseconds.
    """

    def __init__(self, parent: Path) -> None:
        _make(parent)
        above = _open(parent)
        try:
            fcntl.flock(above, fcntl.LOCK_EX)  # until the new one has its own lock
            for old in parent.glob(f"{_PREFIX}*"):
                _sweep(old)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = _open(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            os.close(above)

    def remove(self) -> None:
        """Take it away. What was started there should have ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make(path: Path) -> None:
    """With all above it, whatever the umask is: users of MPS have to pass here."""
    if not path.exists():
        _make(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _sweep(path: Path) -> None:
    with suppress(OSError):
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for pipe_directory in path.glob("*/pipe"):
                _kill_daemons(str(pipe_directory))
            shutil.rmtree(path)
        finally:
            os.close(lock)


def _kill_daemons(pipe_directory: str) -> None:
    for daemon in processes_of(pipe_directory, CONTROL):
        with opened(daemon.pid) as descriptor:
            # Looked at once more now that the pid cannot be used again unnoticed.
            if descriptor is not None and identify(daemon.pid) == daemon:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
