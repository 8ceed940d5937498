"""Starts one device's daemon: ends the orphaned servers of a dead one, makes its directories, then
starts the process. One after the other, in this order.

A daemon that is killed leaves its server running, which then holds the GPU, and a new daemon starts
without knowing of it. Such a server is found by its name and its environment, which every process
can choose; so it is ended only if it runs as the plan's user, who could end it anyway.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.directories import (
    directories_of,
    had_by_another,
    make_directories,
    remove_directories,
)
from nodeagent.mps.files.sockets import BackDoor
from nodeagent.mps.launch.command import Launcher
from nodeagent.mps.launch.process import DaemonProcess
from nodeagent.mps.lifecycle.model import Spawn, SweepOrphans
from nodeagent.mps.processes import CONTROL, SERVER, Identity, ended, identify, opened, processes_of
from nodeagent.mps.shares import DaemonSpec


class OrphansLeft(NodeagentError):
    """What is left of an earlier daemon could not be ended, so no other may be started."""


async def end_orphans(spec: DaemonSpec, *, grace: float) -> tuple[Identity, ...]:
    """End all servers of this daemon, which is dead; which those were.

    They are asked first, as a daemon asks, and killed after `grace` seconds. Raises OrphansLeft
    when one survives even that for as long again, or when a daemon lives there after all.
    """
    pipe_directory = spec.pipe_directory
    daemons = await asyncio.to_thread(_daemons, spec)
    if daemons:
        raise OrphansLeft(
            f"another MPS daemon (pid {daemons[0].pid}, user {daemons[0].uid}) already serves "
            f"{pipe_directory}",
            remedy=f"see who started it, and end it: kill {daemons[0].pid}",
        )
    users = await asyncio.to_thread(_users, spec)
    found = await asyncio.to_thread(processes_of, pipe_directory, SERVER)
    left = servers = tuple(server for server in found if server.uid in users)
    for number in (signal.SIGINT, signal.SIGKILL):
        left = await _ended(left, number, grace)
    if left:
        pids = ", ".join(str(server.pid) for server in left)
        raise OrphansLeft(
            f"an earlier daemon's server does not end although it was killed: pid {pids}",
            remedy="it probably waits for the driver: see the kernel's log, else reboot the node",
        )
    return servers


def _daemons(spec: DaemonSpec) -> Sequence[Identity]:
    """Those that can serve there. Anybody can call a program like that and give it the directory,
    but only its owner and root can have sockets in it.
    """
    found = processes_of(spec.pipe_directory, CONTROL)
    able = {0, os.geteuid(), *_users(spec)}
    return [daemon for daemon in found if daemon.uid in able]


def _users(spec: DaemonSpec) -> frozenset[int]:
    """Users whose servers the daemon may have had: the plan's, and an earlier plan's, who owns the
    log directory until the next start.
    """
    users = {spec.uid}
    with suppress(OSError):
        users.add(Path(spec.log_directory).lstat().st_uid)
    return frozenset(users if spec.uid == 0 else users - {0})


async def _ended(
    servers: Sequence[Identity], number: signal.Signals, seconds: float
) -> tuple[Identity, ...]:
    """Send them a signal, and wait; those that are left."""
    with ExitStack() as stack:
        waits: dict[asyncio.Task[None], Identity] = {}
        for server in servers:
            descriptor = stack.enter_context(opened(server.pid))
            # Looked at once more now that the pid cannot be used again unnoticed.
            if descriptor is None or identify(server.pid) != server:
                continue
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            waits[asyncio.create_task(ended(descriptor))] = server
        if not waits:
            return ()
        try:
            _, late = await asyncio.wait(waits, timeout=seconds)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for server in servers:
            _reap(server.pid)
        return tuple(waits[task] for task in late)


def _reap(pid: int) -> None:
    """Where orphans come to this process (as pid 1 of a container), nobody else does."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


_PATIENCE = 3.0  # seconds for what is under way when it is closed


class Ground:
    """Of one device. `started` gets each process, `failed` why there is none, `idle` is called
    when all is done. `about_to_start` may raise OSError, and nothing is started then.
    """

    def __init__(
        self,
        device: str,
        door: BackDoor,
        *,
        run_dir: Path,
        launcher: Launcher,
        grace: float,
        may_start: Callable[[Spawn], bool],
        about_to_start: Callable[[DaemonSpec], None],
        started: Callable[[int, DaemonProcess], None],
        failed: Callable[[int, str], None],
        idle: Callable[[], None],
    ) -> None:
        self.left_over = ""  # why no other daemon may be started
        self._device = device
        self._door = door
        self._run_dir = run_dir
        self._launcher = launcher
        self._grace = grace
        self._may_start = may_start
        self._about_to_start = about_to_start
        self._started = started
        self._failed = failed
        self._idle = idle
        self._closed = False
        self._actions: deque[SweepOrphans | Spawn] = deque()
        self._worker: asyncio.Task[None] | None = None

    def do(self, action: SweepOrphans | Spawn) -> None:
        """In its turn; nothing any more once it is closed."""
        if self._closed:
            return
        self._actions.append(action)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="mps processes")

    @property
    def is_idle(self) -> bool:
        """Whether no process is being started and no orphan being ended."""
        return self._worker is None

    async def aclose(self) -> None:
        """Leave it as it is. A process that is just being started is waited for, so that its record
        is there; else the next agent could adopt what is about to be taken back.
        """
        self._closed = True
        self._actions.clear()
        worker = self._worker
        if worker is not None:
            await asyncio.wait([worker], timeout=_PATIENCE)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._actions:
                action = self._actions.popleft()
                if isinstance(action, SweepOrphans):
                    await self.sweep(action.spec)
                else:
                    await self._start(action)
        finally:
            self._worker = None
            self._idle()

    async def sweep(self, spec: DaemonSpec) -> None:
        """End what a dead daemon left; `left_over` says what could not be."""
        try:
            await end_orphans(spec, grace=self._grace)
            await asyncio.to_thread(self._door.clear)
            self.left_over = ""
        except OrphansLeft as error:
            self.left_over = str(error)
        except OSError as error:
            self.left_over = f"{error.filename} cannot be removed: {error.strerror}"
        except Exception as error:  # noqa: BLE001  # not knowing what is left, none may be started
            self.left_over = _fault(error)

    async def _start(self, action: Spawn) -> None:
        if not self._may_start(action):
            return
        if self.left_over:
            self._failed(action.run, self.left_over)
            return
        try:
            await asyncio.to_thread(self._make_directories, action.spec)
            self._about_to_start(action.spec)
            process = await self._launcher.launch(action.spec)
        except (NodeagentError, OSError) as error:
            self._failed(action.run, str(error))
        except Exception as error:  # noqa: BLE001  # else its life would wait for this for ever
            self._failed(action.run, _fault(error))
        else:
            self._started(action.run, process)

    def _make_directories(self, spec: DaemonSpec) -> None:
        if had_by_another(directories_of(self._run_dir, self._device), spec.uid):
            remove_directories(self._run_dir, self._device)
        make_directories(self._run_dir, self._device, uid=spec.uid, gid=spec.gid)


def _fault(error: Exception) -> str:
    return f"a fault in the agent itself: {type(error).__name__}: {error}"
