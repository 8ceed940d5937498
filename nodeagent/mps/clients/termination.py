"""Ends a client of MPS without harm to other clients, and never a process with a reused pid.

A daemon that runs for a tenant can be made to name any process. So a process is ended only when
the driver itself lists it as an MPS process of the device, and it runs as the plan's user: never as
root unless the plan says root, and it is never one of the agent's own. A descriptor (pidfd) is
opened before it is looked at, so that a reused pid never hits another process.

A client that is killed while the device works for it can take its server along, and with that all
other clients. So the daemon is asked first, and only when it says that the client's work is ended,
or does not have it as a client, does the process get signals.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack

from nodeagent.errors import NodeagentError
from nodeagent.mps.commands import UnexpectedReply, terminate_client
from nodeagent.mps.control import ControlClient, ControlError, ask_everything
from nodeagent.mps.processes import process_descriptor, process_end
from nodeagent.processes import Hidden, Process, ProcessIdentity, Uids, has_ended, inspect
from nodeagent.structs import Struct
from nodeagent.waiting import ends_within


class ClientToEnd(Struct, frozen=True):
    """A client process. `uid` is the plan's user, None where it may be any but root; `spared` are
    pids that must not be ended.
    """

    process: ProcessIdentity
    uid: int | None
    spared: frozenset[int] = frozenset()


class ClientEnd(Struct, frozen=True):
    """Whether the process is gone, and how that went, in words."""

    gone: bool
    words: str


class _LeftAlone(Exception):
    """The client must not be ended, or cannot be without harm; the message says why."""


async def end_client(
    control: ControlClient,
    target: ClientToEnd,
    listed: Callable[[], Awaitable[Collection[int]]],
    *,
    deadline: float,
    grace: float,
) -> ClientEnd:
    """Have the daemon end the client's work in `deadline` seconds; then, whenever the process has
    not ended after `grace` seconds, send the next signal. `listed` gives the pids of the device's
    MPS processes as the driver has them; if it raises NodeagentError, the client is left alone.
    """
    pid = target.process.pid
    already = ClientEnd(True, "it had ended already")
    if pid in {0, 1, os.getpid(), os.getppid(), *target.spared}:
        return ClientEnd(False, f"left alone: pid {pid} may not be ended")
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(process_descriptor(pid))
        except OSError as error:
            return ClientEnd(False, f"left alone: it cannot be held: {error.strerror}")
        found = await asyncio.to_thread(inspect, pid)
        if isinstance(found, Hidden):
            return ClientEnd(False, f"left alone: {found.reason}")
        if descriptor is None or found is None or found.identity != target.process:
            return already
        try:
            _insist_on_owner(found.uids, target)
            await _insist_on_listed(pid, listed)
            # It was alive after the driver answered, so the driver lists this process.
            by_daemon = await _end_work(control, descriptor, pid, deadline)
        except _LeftAlone as error:
            return already if has_ended(descriptor) else ClientEnd(False, f"left alone: {error}")
        return await _end_process(descriptor, target, by_daemon, grace)


def _insist_on_owner(uids: Uids, target: ClientToEnd) -> None:
    """Refuse a process that is not the plan's user's alone, as a setuid program is not."""
    has = {uids.real, uids.effective, uids.saved}
    if target.uid is None and 0 in has:
        raise _LeftAlone("it has the rights of root")
    if target.uid is not None and has != {target.uid}:
        raise _LeftAlone(f"it runs as user {uids.effective}, not as the plan's user {target.uid}")


async def _insist_on_listed(pid: int, listed: Callable[[], Awaitable[Collection[int]]]) -> None:
    try:
        if pid in await listed():
            return
    except NodeagentError as error:
        raise _LeftAlone(
            f"which MPS processes the driver has on the device is not known ({error.message})"
        ) from error
    raise _LeftAlone("the driver does not list it as an MPS process of the device")


async def _end_work(control: ControlClient, descriptor: int, pid: int, deadline: float) -> str:
    try:
        seen = await ask_everything(control, status=False)
        if not seen.knows_clients or any(client == 0 for _, client in seen.clients):
            raise _LeftAlone("the daemon does not list its clients")
        server = next((server for server, client in seen.clients if client == pid), None)
        if server is None:
            return "the daemon does not list it as a client"
        if has_ended(descriptor):  # the number may be another client's by now
            raise _LeftAlone("it has ended")
        code = await control.ask(terminate_client(server, pid), deadline=deadline)
    except (ControlError, UnexpectedReply) as error:
        raise _LeftAlone(error.message) from error
    if code != 0:
        raise _LeftAlone(f"the daemon could not end its work, CUDA error {code}")
    return "the daemon ended its work"


async def _end_process(
    descriptor: int, target: ClientToEnd, so_far: str, grace: float
) -> ClientEnd:
    if await ends_within(grace, process_end(descriptor)):
        return ClientEnd(True, f"{so_far}, and it ended by itself")
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Its user may have changed since, by executing a setuid program.
        found = await asyncio.to_thread(inspect, target.process.pid)
        try:
            if isinstance(found, Process):
                _insist_on_owner(found.uids, target)
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except _LeftAlone as error:
            return ClientEnd(False, f"{so_far}, but the process is left alone: {error}")
        except PermissionError:
            return ClientEnd(False, f"{so_far}, but it may not be sent signals")
        if await ends_within(grace, process_end(descriptor)):
            return ClientEnd(True, f"{so_far}, and {number.name} the process")
    return ClientEnd(False, f"{so_far}, but the process remains although killed")
