"""What the daemon keeps on disk: two sockets, a lock, a fifo, a pid file, two logs."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time

from nodeagent.simulation.mps import protocol
from nodeagent.simulation.mps.log_lines import STDOUT, Log, opened

LOCK = "control_lock"
FIFO = "log"
PID_FILE = "nvidia-cuda-mps-control.pid"
_DEFAULT_LOGS = "/var/log/nvidia-mps"


class StartFailed(Exception):
    """The daemon cannot start; the text may be empty, as it is when the path is too long."""


class Files:
    """The pipe directory, taken by this process. Raises StartFailed."""

    def __init__(self, directory: str, *, pid_file: bool, slow_sockets: float = 0) -> None:
        self.directory = directory
        self._slow_sockets = slow_sockets
        _make_directory(directory, 0o777)
        try:
            self._lock = os.open(self._path(LOCK), os.O_WRONLY | os.O_CREAT, 0o666)
        except OSError as error:
            raise _no_access(directory) from error
        os.set_inheritable(self._lock, True)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartFailed("An instance of this daemon is already running") from error
        _allow(self._path(LOCK), 0o666)
        self._make_fifo()
        if len(os.fsencode(self._path(protocol.PRIVILEGED))) > protocol.MAX_PATH:
            raise StartFailed("")
        self.privileged = self._listen(protocol.PRIVILEGED, 0o755)
        self.control = self._listen(protocol.CONTROL, 0o666)
        if pid_file:
            self._write_pid()

    def clean_up(self) -> None:
        """What `quit` takes away; all else stays."""
        for name in (PID_FILE, FIFO):
            _remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _make_fifo(self) -> None:
        _remove(self._path(FIFO))
        os.mkfifo(self._path(FIFO))
        _allow(self._path(FIFO), 0o777)

    def _listen(self, name: str, mode: int) -> socket.socket:
        path = self._path(name)
        _remove(path)  # what a daemon left that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(path)
        except OSError as error:
            raise _no_access(self.directory) from error
        time.sleep(self._slow_sockets)
        _allow(path, mode)
        listener.listen(128)
        listener.setblocking(False)
        return listener

    def _write_pid(self) -> None:
        with open(self._path(PID_FILE), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
        _allow(self._path(PID_FILE), 0o666)


def log_directory() -> str:
    """Where this daemon keeps its logs."""
    return os.environ.get("CUDA_MPS_LOG_DIRECTORY") or _DEFAULT_LOGS


def open_logs(*, foreground: bool) -> tuple[Log, Log]:
    """control.log and server.log, or standard output; raises OSError."""
    directory = log_directory()
    if not os.path.isdir(directory):
        os.mkdir(directory, 0o700)
    if foreground:
        return Log(STDOUT, "Control"), Log(STDOUT, "Other")
    return opened(f"{directory}/control.log", "Control"), opened(f"{directory}/server.log", "Other")


def remove_tree(directory: str) -> None:
    """A directory of files; nothing happens when it is not there."""
    try:
        for name in os.listdir(directory):
            _remove(f"{directory}/{name}")
        os.rmdir(directory)
    except OSError:
        return


def _make_directory(path: str, mode: int) -> None:
    try:
        os.mkdir(path)
        _allow(path, mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise _no_access(path) from None
    except OSError as error:
        raise _no_access(path) from error


def _no_access(directory: str) -> StartFailed:
    return StartFailed(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={directory}")


def _allow(path: str, mode: int) -> None:
    try:
        os.chmod(path, mode)  # whatever the umask is
    except PermissionError:
        return  # another user's, left by a daemon of his


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
