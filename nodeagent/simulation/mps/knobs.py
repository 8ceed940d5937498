"""What is to go wrong, read by running stand-ins from a file.

    knobs = Knobs(directory)                      # of the installation: for every daemon
    knobs = Knobs(directory, pipe_directory)      # for one daemon and its servers
    knobs.turn("fault")

A knob stays as turned until it is cleared. Those that say "now" act once on each process that
runs when they are turned, and on none that starts later.
"""

import json
import os
import time
import zlib
from typing import Any

KNOBS = {
    # of the daemon
    "die": "now: as by SIGKILL; its server is orphaned",
    "die_after": "seconds after every start",
    "hang": "it answers nothing, until cleared",
    "deaf": "it ignores SIGTERM, SIGINT and SIGHUP",
    "busy": "`error` or `empty`: every front-end is refused, as if another one were connected",
    "start_error": "a text, or none: the start fails with status 1",
    "slow_start": "seconds until it listens",
    "slow_sockets": "seconds from making a socket to listening at it",
    "forget_limits": "now: it loses what was set",
    "ignore_settings": "it replies as if a default had been set, and sets nothing",
    "lose_pipes": "now: the pipe directory is removed",
    "lose_logs": "now: the log directory is removed",
    "stray_client": "now: {pid, uid} connects, and stays where it has to wait",
    # of the server
    "server_slow": "seconds it is INITIALIZING",
    "server_exit": "the status with which it ends at start",
    "no_gpu": "it finds no device, and ends with status 1",
    "server_uid": "it runs as this user instead of the client's",
    "server_deaf": "it ignores SIGINT and SIGTERM",
    "server_die": "now: as by SIGKILL",
    "server_busy": "per-server commands get no reply",
    "server_hang": "it does nothing any more, until cleared",
    "fault": "now: a fatal fault, until all clients are gone; `hold`: until cleared",
    "terminate_code": "what terminate_client answers; -1: nothing, ever",
}
_FOLDER = "knobs"


def _path(directory: str, pipe_directory: str | None) -> str:
    if pipe_directory is None:
        name = "all"
    else:
        name = f"{zlib.crc32(os.path.realpath(pipe_directory).encode()):08x}"
    return os.path.join(directory, _FOLDER, f"{name}.json")


class Knobs:
    """Turns knobs; `directory` is that of the installation."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        pipe_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        pipes = None if pipe_directory is None else os.fspath(pipe_directory)
        self._path = _path(os.fspath(directory), pipes)
        self._is_of_all = pipes is None

    def turn(self, knob: str, value: object = True) -> None:
        """Raises ValueError for a knob that there is not."""
        if knob not in KNOBS:
            raise ValueError(f"no knob is called {knob!r}: {', '.join(sorted(KNOBS))}")
        _write(self._path, {**_read(self._path), knob: [value, time.time()]})

    def clear(self, *knobs: str) -> None:
        """These, or all; those of the installation also where they were turned for one daemon."""
        for path in {self._path, *(self._of_daemons() if self._is_of_all else ())}:
            _write(path, {k: v for k, v in _read(path).items() if knobs and k not in knobs})

    def _of_daemons(self) -> list[str]:
        folder = os.path.dirname(self._path)
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [os.path.join(folder, name) for name in names if name.endswith(".json")]


class Watched:
    """The knobs of one process, read again whenever the file changed."""

    def __init__(self, directory: str, pipe_directory: str) -> None:
        self._paths = (_path(directory, None), _path(directory, pipe_directory))
        self._began = time.time()
        self._seen: list[tuple[int, int]] = []
        self._settings: dict[str, Any] = {}
        self._done: dict[str, float] = {}

    def look(self) -> None:
        """Take over what was turned meanwhile; costs two system calls when nothing was."""
        seen = [_stamp(path) for path in self._paths]
        if seen != self._seen:
            self._seen = seen
            self._settings = {k: v for path in self._paths for k, v in _read(path).items()}

    def get(self, knob: str, default: Any = None) -> Any:
        """The value of a knob that stays, `default` when it is not turned."""
        return self._settings[knob][0] if knob in self._settings else default

    def now(self, knob: str) -> Any:
        """The value of a knob that acts once, None when it is not turned or has acted."""
        if knob not in self._settings:
            return None
        value, turned = self._settings[knob]
        if turned < self._began or self._done.get(knob) == turned:
            return None
        self._done[knob] = turned
        return value


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino


def _write(path: str, settings: dict[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="ascii") as file:
        json.dump(settings, file)
    os.chmod(new, 0o644)  # daemons of every user look at it, whatever the umask is
    os.replace(new, path)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="ascii") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
