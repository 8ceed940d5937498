"""How a daemon's process is started, found again after an earlier agent, waited for and killed.

The process outlives the agent. `child` and `service` are the two ways to start one.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.files import log
from nodeagent.mps.processes import CONTROL, MpsProcess, mps_process, process_end
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import LOG_NAME, SHM, DaemonSpec
from nodeagent.structs import replace

UNKNOWN_END = "its status is not known"


class StartError(NodeagentError):
    """The daemon's process could not be started."""


class DaemonProcess:
    """A running daemon, a child of this process or not; made inside the event loop.

    `find_end` says in words how the process ended, once it has; None where nothing can tell.
    """

    def __init__(
        self, identity: MpsProcess, find_end: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        self.identity = identity
        self.find_end = find_end
        self._descriptor = os.pidfd_open(identity.pid)
        self._ended = asyncio.create_task(self._until_ended(), name="mps end")
        self._ended.add_done_callback(lambda _: os.close(self._descriptor))

    @property
    def pid(self) -> int:
        return self.identity.pid

    async def wait(self) -> str:
        """Wait until it ends; return how, in words. Any number of tasks may wait."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill it, if it is still there; `wait` returns when it is gone."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Stop watching the daemon, which runs on."""
        self._ended.cancel()

    async def _until_ended(self) -> str:
        await process_end(self._descriptor)
        if self.find_end is None:
            return f"{UNKNOWN_END}, because an earlier agent started it"
        try:
            return await self.find_end()
        except Exception:  # noqa: BLE001  # the end counts, not how: a restart waits for it
            return UNKNOWN_END


def identity_of(pid: int, spec: DaemonSpec) -> MpsProcess:
    """Identify a process just started as `spec`; start time 0 if it has ended already."""
    return mps_process(pid) or MpsProcess(pid, 0, spec.uid, CONTROL, spec.pipe_directory)


async def adopt(identity: MpsProcess, spec: DaemonSpec) -> DaemonProcess | None:
    """Take over a daemon that an earlier agent started as `spec` and noted as `identity`; None for
    any other process, which is left alone.
    """
    try:
        process = DaemonProcess(identity)
    except OSError:
        return None
    daemon = MpsProcess(identity.pid, identity.start_time, spec.uid, CONTROL, spec.pipe_directory)
    is_same = False
    try:  # identified after the pidfd was opened, so that a reused pid is noticed
        is_same = await asyncio.to_thread(mps_process, identity.pid) == daemon
    finally:
        if not is_same:
            process.close()
    return process if is_same else None


def exit_words(status: int) -> str:
    """A process' status, as `subprocess` gives it, in words: below 0 for a signal that ended it."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


OPEN_FILES = 16_384  # fewer, and servers fail to make shared memory for their clients
# Below 0: when memory runs out, others go first. The end of a daemon or server would be the end of
# the work of all its clients. Far from -1000, so that a server that eats all memory can be ended.
OOM_SCORE = -500
UMASK = 0o022


@dataclass(eq=False)
class Launcher(ABC):
    """Starts daemons. `find_flag` finds the flag that asks the installed program for a server of
    all users, "" where it has none; it raises StartError where that is not known.
    """

    programs: Programs
    find_flag: Callable[[], Awaitable[str]] | None = field(default=None, kw_only=True)
    _flag: str = field(default="", init=False)
    _finding: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """Start a daemon as `spec` says; its directories have been made. Raises StartError."""
        command = [*self.programs.control, "-f"]
        try:
            self.programs.require_own()
        except OSError as error:
            raise StartError.of("notOwn", command=command[0], why=error.strerror) from error
        if spec.multi_user:
            command.append(await self._multi_user_flag(spec.device))
        environment = self.programs.environment(spec.pipe_directory, spec.log_directory)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
        return await self._start(spec, command, environment)

    def end_of(self, spec: DaemonSpec) -> Callable[[], Awaitable[str]] | None:
        """As `find_end`, for a daemon that an earlier agent started."""
        return None

    @abstractmethod
    async def _start(
        self, spec: DaemonSpec, command: Sequence[str], environment: Mapping[str, str]
    ) -> DaemonProcess:
        """Run `command`, the daemon in the foreground, with this environment alone, which its
        servers have too. Raises StartError.
        """

    async def _multi_user_flag(self, device: str) -> str:
        """Look for the flag until it is found: the program may be replaced by one that has it."""
        async with self._finding:
            if not self._flag and self.find_flag is not None:
                self._flag = await self.find_flag()
        if not self._flag:
            raise StartError.of("noServerForAll", device=device)
        return self._flag


def has_private_shm(pid: int, spec: DaemonSpec) -> bool | None:
    """Whether the process has the device's own /dev/shm; None where that is not known."""
    try:
        found = Path(f"/proc/{pid}/root{SHM}").stat()
        private = Path(replace(spec, private_shm=True).shm)
        return private.exists() and os.path.samestat(found, private.stat())
    except OSError:
        return None


def open_log(spec: DaemonSpec) -> int:
    """Open the daemon's log for appending. Raises StartError; blocks as the file system does."""
    path = Path(spec.log_directory) / LOG_NAME
    try:
        return log.open_log(path.parent, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    except OSError as error:
        raise StartError.of("logNotWritten", path=path, why=error.strerror) from error
