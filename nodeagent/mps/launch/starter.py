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
from nodeagent.mps.files.sockets import DaemonSockets, is_reachable
from nodeagent.mps.launch.launcher import Launcher
from nodeagent.mps.launch.process import DaemonProcess, StartError
from nodeagent.mps.processes import (
    CONTROL,
    SERVER,
    MpsProcess,
    mps_process,
    process_descriptor,
    process_end,
    processes_of,
)
from nodeagent.mps.shares import DaemonSpec


class OrphansLeft(NodeagentError):
    """What is left of an earlier daemon could not be ended, so no other may be started."""


async def end_orphans(spec: DaemonSpec, *, grace: float) -> tuple[MpsProcess, ...]:
    """End what is left of this daemon, which is dead or lost its sockets; which processes it was.

    They are asked first, as a daemon asks, and killed after `grace` seconds. Raises OrphansLeft
    when one survives even that for as long again, or when a daemon lives there after all.
    """
    pipe_directory = spec.pipe_directory
    users = await asyncio.to_thread(_users, spec)
    daemons = await asyncio.to_thread(_daemons, spec)
    found = await asyncio.to_thread(processes_of, pipe_directory, SERVER)
    for daemon in daemons:
        # Without a server it has no client, and without a socket it never gets one.
        if found or daemon.uid not in users or await asyncio.to_thread(is_reachable, daemon):
            raise OrphansLeft(
                f"another MPS daemon (pid {daemon.pid}, user {daemon.uid}) already serves "
                f"{pipe_directory}",
                remedy=f"see who started it, and end it: `kill {daemon.pid}`",
            )
    left = servers = (*daemons, *(server for server in found if server.uid in users))
    for number in (signal.SIGINT, signal.SIGKILL):
        left = await _ended(left, number, grace)
    if left:
        pids = ", ".join(str(server.pid) for server in left)
        raise OrphansLeft(
            f"an earlier daemon or its server does not end although it was killed: pid {pids}",
            remedy="it probably waits for the driver: look at `dmesg | grep NVRM`, else reboot",
        )
    return servers


def _daemons(spec: DaemonSpec) -> Sequence[MpsProcess]:
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
    servers: Sequence[MpsProcess], number: signal.Signals, seconds: float
) -> tuple[MpsProcess, ...]:
    """Send them a signal, and wait; those that are left."""
    with ExitStack() as stack:
        waits: dict[asyncio.Task[None], MpsProcess] = {}
        for server in servers:
            descriptor = stack.enter_context(process_descriptor(server.pid))
            # Looked at once more now that the pid cannot be used again unnoticed.
            if descriptor is None or mps_process(server.pid) != server:
                continue
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            waits[asyncio.create_task(process_end(descriptor))] = server
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
    """Where orphans become children of this process (as pid 1 of a container), only it can."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def clear_left_over(spec: DaemonSpec, sockets: DaemonSockets, *, grace: float) -> str:
    """End what a dead daemon left, and take its sockets away; what could not be, in words."""
    try:
        await end_orphans(spec, grace=grace)
        await asyncio.to_thread(sockets.clear)
    except OrphansLeft as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be removed: {error.strerror}"
    except Exception as error:  # noqa: BLE001  # not knowing what is left, none may be started
        return internal_fault(error)
    return ""


async def start_daemon(
    spec: DaemonSpec, run_dir: Path, launcher: Launcher, record: Callable[[], None]
) -> DaemonProcess:
    """Make its directories, call `record`, which may raise OSError, and launch it. Raises
    StartError.
    """
    try:
        await asyncio.to_thread(_make_directories, run_dir, spec)
        record()
        return await launcher.launch(spec)
    except (NodeagentError, OSError) as error:
        raise StartError(str(error)) from error
    except Exception as error:  # else its life would wait for this for ever
        raise StartError(internal_fault(error)) from error


def _make_directories(run_dir: Path, spec: DaemonSpec) -> None:
    if had_by_another(directories_of(run_dir, spec.device), spec.uid):
        remove_directories(run_dir, spec.device)
    make_directories(run_dir, spec.device, uid=spec.uid, gid=spec.gid)


def internal_fault(error: Exception) -> str:
    """For an error that no code expects."""
    return f"a fault in the agent itself: {type(error).__name__}: {error}"
