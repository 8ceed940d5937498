"""One control daemon's process: started in the foreground, or found again; waited for; ended.

It outlives this agent: it has a session of its own, and its words go into a file, not into a pipe
that would break.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.identity import CONTROL, Identity, identify
from nodeagent.mps.shares import DaemonSpec

LOG_NAME = "daemon.log"  # what daemon and servers say; in the foreground they make no other
OPEN_FILES = 16_384  # fewer, and servers fail to make shared memory for their clients
_TAIL = 8192  # bytes of the log that are looked at for its last lines


class StartError(NodeagentError):
    """The daemon's process could not be started."""


class NotTheDaemon(NodeagentError):
    """The process is not the daemon it was taken for, and is left alone."""


@dataclass(frozen=True, slots=True)
class Programs:
    """How daemons are started.

    `control` is the program with leading arguments, if any; `path` is its PATH, in which it looks
    for the server (distributions put that into /usr/sbin); `library_path` says where libcuda is,
    if not where the loader looks.
    """

    control: tuple[str, ...] = (CONTROL,)
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    library_path: str = ""


class DaemonProcess:
    """A running daemon, this process' child or not."""

    def __init__(self, identity: Identity, child: subprocess.Popen[bytes] | None) -> None:
        self.identity = identity
        self._child = child
        self._descriptor = os.pidfd_open(identity.pid)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._end)

    @property
    def pid(self) -> int:
        return self.identity.pid

    async def wait(self) -> str:
        """Until it ends: how, in words. Any number of tasks may wait."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill it, if it is still there; `wait` tells when it is gone."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Look at it no more. It runs on."""
        if not self._ended.done():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._ended.cancel()
            if self._child is not None:
                self._child.returncode = 0  # that it still runs is meant, and needs no warning

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        status = self._child.wait() if self._child is not None else None
        self._ended.set_result(_in_words(status))


def spawn(spec: DaemonSpec, programs: Programs) -> DaemonProcess:
    """Start a daemon as `spec` says; its directories have been made. Raises StartError.

    As asyncio's own way to start a process does, it blocks until the program is loaded.
    """
    log = _open_log(spec)
    try:
        child = subprocess.Popen(
            [*programs.control, "-f", *(["-multiuser-server"] if spec.multi_user else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=daemon_environment(spec, programs),
            start_new_session=True,
            umask=0o022,
            **_identity(spec),  # type: ignore[call-overload]  # user, group, extra_groups or none
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartError(
            f"{programs.control[0]} cannot be run as user {spec.uid}: {reason}",
            remedy="install it, or set the path of it; run as root to run it as another user",
        ) from error
    finally:
        os.close(log)
    _allow_open_files(child.pid)
    identity = identify(child.pid) or Identity(child.pid, 0, spec.uid, CONTROL, spec.pipe_directory)
    return DaemonProcess(identity, child)


def adopt(identity: Identity, spec: DaemonSpec) -> DaemonProcess:
    """Take over a daemon that an earlier agent started and noted as `identity`.

    Raises NotTheDaemon with the first thing that differs.
    """
    try:
        process = DaemonProcess(identity, None)
    except OSError as error:
        raise NotTheDaemon(f"there is no process {identity.pid} any more") from error
    # Looked at only now, when the pid cannot be used again unnoticed.
    found = identify(identity.pid)
    difference = _difference(identity, found, spec)
    if difference:
        process.close()
        raise NotTheDaemon(
            f"process {identity.pid} is not the daemon of {spec.device}: {difference}"
        )
    return process


def daemon_environment(spec: DaemonSpec, programs: Programs) -> dict[str, str]:
    """All that a daemon, and so its servers, have in their environment."""
    environment = {
        "CUDA_MPS_LOG_DIRECTORY": spec.log_directory,
        "CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory,
        "CUDA_VISIBLE_DEVICES": spec.device,
        "LC_ALL": "C",
        "PATH": programs.path,
    }
    if programs.library_path:
        environment["LD_LIBRARY_PATH"] = programs.library_path
    return environment


def last_lines(spec: DaemonSpec, count: int) -> tuple[str, ...]:
    """The last lines of what it said; none when there is nothing to read."""
    try:
        with (Path(spec.log_directory) / LOG_NAME).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _TAIL, 0))
            said = log.read(_TAIL).decode(errors="replace")
    except OSError:
        return ()
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return tuple("".join(c for c in line if c.isprintable()) for line in lines[-count:])


def _identity(spec: DaemonSpec) -> dict[str, object]:
    """Whom the process shall run as; nothing where that is who this process is."""
    if (spec.uid, spec.gid) == (os.geteuid(), os.getegid()) and spec.uid != 0:
        return {}
    return {"user": spec.uid, "group": spec.gid, "extra_groups": list(spec.groups)}


def _open_log(spec: DaemonSpec) -> int:
    """Its log, to append to. The directory is the daemon's user's, who could put anything there."""
    path = Path(spec.log_directory) / LOG_NAME
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        log = os.open(path, flags, 0o640)
    except OSError as error:
        raise StartError(
            f"{path} cannot be written: {error.strerror}", remedy="remove what is in its place"
        ) from error
    found = os.fstat(log)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(log)
        raise StartError(f"{path} is no plain file", remedy="remove what is in its place")
    return log


def _allow_open_files(pid: int) -> None:
    """As many as servers need, as far as the hard limit lets it."""
    with suppress(OSError, ValueError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        if soft < OPEN_FILES:
            most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))


def _difference(expected: Identity, found: Identity | None, spec: DaemonSpec) -> str:
    if found is None or found.program != CONTROL:
        return f"it does not run {CONTROL}"
    if found.start_time != expected.start_time:
        return "it was started at another time, so the number was used again"
    if found.pipe_directory != spec.pipe_directory:
        return f"its pipe directory is {found.pipe_directory!r}, not {spec.pipe_directory!r}"
    if found.uid != spec.uid:
        return f"it runs as user {found.uid}, not {spec.uid}"
    return ""


def _in_words(status: int | None) -> str:
    if status is None:
        return "its status is not known, because an earlier agent started it"
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
