"""Ends what a dead daemon left, before another is started in its place.

A daemon that is killed leaves its server running, which then holds the GPU, and a new daemon starts
without knowing of it. Such a server is found by its name and its environment, which every process
can choose; so it is ended only if it runs as the plan's user, who could end it anyway.
"""

import asyncio
import os
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.directories import owner_of
from nodeagent.mps.files.sockets import is_reachable
from nodeagent.mps.processes import (
    CONTROL,
    SERVER,
    MpsProcess,
    mps_processes,
    process_descriptor,
    process_end,
)
from nodeagent.mps.shares import DaemonSpec
from nodeagent.processes import Hidden, inspect


class OrphansLeft(NodeagentError):
    """What is left of an earlier daemon could not be ended, so no other may be started. It may be
    `processes`, which are not found by their names any more while they exit.
    """

    def __init__(self, message: str, *, remedy: str, processes: Iterable[MpsProcess] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.processes = tuple(processes)


async def end_orphans(
    spec: DaemonSpec, *, grace: float, known: Collection[MpsProcess] = ()
) -> tuple[MpsProcess, ...]:
    """End what is left of this daemon, which is dead or lost its sockets; which processes it was.
    `known` are those that may exit without a name, since an earlier call could not end them or
    the daemon had them as servers.

    They are asked first, as a daemon asks, and killed after `grace` seconds. Raises OrphansLeft
    when one survives even that for as long again, or when a daemon lives there after all.
    """
    pipe_directory = spec.pipe_directory
    users = await asyncio.to_thread(_users, spec)
    # Anybody can call a program like a daemon and give it the directory, but only its owner and
    # root can have sockets in it.
    able = {0, os.geteuid(), *users}
    every = await asyncio.to_thread(mps_processes)
    _insist_on_read([one for one in every if one.uid in able], pipe_directory, known)
    here = [one for one in every if one.pipe_directory == pipe_directory]
    daemons = [one for one in here if one.program == CONTROL and one.uid in able]
    found = [one for one in here if one.program == SERVER]
    own = [server for server in found if server.uid in users]
    served = found if spec.uid == 0 else own  # only root's has servers of other users
    for daemon in daemons:
        # Without a server it has no client, and without a socket it never gets one.
        if served or daemon.uid not in users or await asyncio.to_thread(is_reachable, daemon):
            also = {"processes": known}
            raise OrphansLeft.of("otherDaemonHere", also=also, daemon=daemon, folder=pipe_directory)
    servers = tuple(dict.fromkeys((*daemons, *own, *known)))
    with ExitStack() as stack:
        held = _held(servers, stack)
        for number in (signal.SIGINT, signal.SIGKILL):
            held = await _ended(held, number, grace)
    if held:
        left = tuple(held.values())
        pids = ", ".join(str(server.pid) for server in left)
        raise OrphansLeft.of("orphansStay", also={"processes": left}, pids=pids)
    return servers


def _insist_on_read(
    processes: Iterable[MpsProcess], pipe_directory: str, known: Collection[MpsProcess]
) -> None:
    """Raise OrphansLeft for a process that could not be read and so may be one of those left."""
    left = {(one.pid, one.start_time) for one in known}
    for one in processes:
        if not one.program and (one.pid, one.start_time) not in left:
            also = {"processes": known}
            raise OrphansLeft.of("orphanUnread", also=also, one=one, folder=pipe_directory)


def _users(spec: DaemonSpec) -> frozenset[int]:
    """Users whose servers the daemon may have had: the plan's, and an earlier plan's, who owns the
    log directory until the next start.
    """
    users = {spec.uid}
    with suppress(OSError):
        users.add(owner_of(spec.log_directory))
    return frozenset(users if spec.uid == 0 else users - {0})


def _held(servers: Sequence[MpsProcess], stack: ExitStack) -> Mapping[int, MpsProcess]:
    """The servers that exist, each by a descriptor that stands for it. Raises OrphansLeft."""
    held: dict[int, MpsProcess] = {}
    for server in servers:
        try:
            descriptor = stack.enter_context(process_descriptor(server.pid))
        except OSError as error:
            raise _not_known(server, error.strerror or str(error), servers) from error
        if descriptor is not None:
            held[descriptor] = server
    return held


async def _ended(
    servers: Mapping[int, MpsProcess], number: signal.Signals, seconds: float
) -> Mapping[int, MpsProcess]:
    """Send them a signal, and wait; those that are left. Raises OrphansLeft."""
    there = {one: server for one, server in servers.items() if _is_there(server, servers.values())}
    for descriptor in there:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
    if not there:
        return {}
    waits = {asyncio.create_task(process_end(one)): one for one in there}
    try:
        _, late = await asyncio.wait(waits, timeout=seconds)
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    for server in servers.values():
        _reap(server.pid)
    return {waits[task]: there[waits[task]] for task in late}


def _is_there(server: MpsProcess, processes: Iterable[MpsProcess]) -> bool:
    """Whether its pid is its own still, and its user the same. Its memory, and with it what it is
    called, goes before its files are closed; so that does not count here. Raises OrphansLeft.
    """
    found = inspect(server.pid, zombies=True)
    if isinstance(found, Hidden):
        raise _not_known(server, found.reason, processes)
    if found is None:
        return False
    uids = found.uids
    same_user = {uids.real, uids.effective, uids.saved} == {server.uid}
    return found.identity.create_time == server.start_time and same_user


def _not_known(server: MpsProcess, why: str, processes: Iterable[MpsProcess]) -> OrphansLeft:
    return OrphansLeft.of("orphanUnknown", also={"processes": processes}, pid=server.pid, why=why)


def _reap(pid: int) -> None:
    """Reap an orphan that became a child of this process, as in a container where it is pid 1."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
