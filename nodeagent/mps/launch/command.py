"""How a daemon is started, by any launcher: command line, environment, log, multi-user flag."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nodeagent.mps.launch.process import DaemonProcess, StartError
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import LOG_NAME, DaemonSpec

if TYPE_CHECKING:
    from nodeagent.mps.launch.probing import Probe

OPEN_FILES = 16_384  # fewer, and servers fail to make shared memory for their clients
# Below 0: when memory runs out, others go first. The end of a daemon or server would be the end of
# the work of all its clients. Far from -1000, so that a server that eats all memory can be ended.
OOM_SCORE = -500
UMASK = 0o022
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # no file is made there by this process


def daemon_command(spec: DaemonSpec, programs: Programs) -> list[str]:
    """Runs it in the foreground. Raises StartError where the driver's MPS lacks what is asked."""
    if not spec.multi_user:
        return [*programs.control, "-f"]
    if not programs.multi_user_flag:
        raise StartError(
            f"the MPS of this driver has no server for all users, which {spec.device} is to have",
            remedy="name one user in the plan, or install a driver of branch 555 or later",
        )
    return [*programs.control, "-f", programs.multi_user_flag]


def daemon_environment(spec: DaemonSpec, programs: Programs) -> dict[str, str]:
    """All that a daemon, and so its servers, have in their environment."""
    environment = programs.environment(spec.pipe_directory, spec.log_directory)
    return environment | {"CUDA_VISIBLE_DEVICES": spec.device}


def shm_directory(spec: DaemonSpec, private: bool) -> Path:
    """What has to be /dev/shm for the clients of this daemon, since daemon, server and clients
    share memory there: the device's own directory, or that of the host.
    """
    return Path(spec.pipe_directory).parent / "shm" if private else _SHARED_MEMORY


def open_log(spec: DaemonSpec) -> int:
    """Its log, to append to. The directory is the daemon's user's, who could put anything there.

    Raises StartError; blocks for as long as the file system does.
    """
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


class Launcher(Protocol):
    """One of the ways."""

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """Start a daemon as `spec` says; its directories have been made. Raises StartError."""
        ...


class AnyUserLauncher:
    """Starts daemons by the launcher that `make` makes for these programs."""

    def __init__(
        self,
        programs: Programs,
        *,
        make: Callable[[Programs], Launcher],
        probe: Callable[[], Awaitable[Probe]],
    ) -> None:
        self._programs = programs
        self._make = make
        self._probe = probe
        self._launcher = make(programs)
        self._for_any_user: Launcher | None = None
        self._probing = asyncio.Lock()

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """As the launcher; raises StartError, also when the program has no such way."""
        if not spec.multi_user:
            return await self._launcher.launch(spec)
        async with self._probing:
            if self._for_any_user is None:
                found = await self._probe()
                flag = found.multi_user_flag
                launcher = self._make(replace(self._programs, multi_user_flag=flag))
                if not flag:  # the program may be replaced by one that has it: try again then
                    return await launcher.launch(spec)
                self._for_any_user = launcher
        return await self._for_any_user.launch(spec)
