"""Ends a client without harm to the others.

A client that is killed while the device works for it can take its server along, and with that all
other clients. So the daemon is told first, and only when it says that the client's work is ended
does the process get signals. A process is named by a descriptor that was opened before it was
looked at, so that a number which is used again hits nobody else.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from nodeagent.mps.client_processes import start_time_of
from nodeagent.mps.commands import GetClientList, TerminateClient
from nodeagent.mps.control import ControlClient, ControlError
from nodeagent.mps.pidfd import ended, opened
from nodeagent.mps.replies import UnexpectedReply


@dataclass(frozen=True, slots=True)
class Target:
    """A client process of a server; `start_time` in clock ticks since boot tells it from a later
    process of the same number.
    """

    server: int
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Ending:
    """Whether the process is gone, and how that went, in words."""

    gone: bool
    words: str


async def end_client(
    control: ControlClient,
    target: Target,
    *,
    deadline: float,
    grace: float,
    proc_root: Path = Path("/proc"),
) -> Ending:
    """End it: by the daemon, which has `deadline` seconds, then each signal after `grace` seconds.

    Does nothing to a process that is not a client of that server any more.
    """
    if target.pid in {0, 1, os.getpid()}:
        return Ending(False, f"left alone: pid {target.pid} is none that may be ended")
    with opened(target.pid) as descriptor:
        start = await asyncio.to_thread(start_time_of, target.pid, proc_root)
        if descriptor is None or start != target.start_time:
            return Ending(True, "it had ended already")
        obstacle = await _end_work(control, target, deadline)
        if obstacle:
            return Ending(await _is_ended(descriptor, 0), f"left alone: {obstacle}")
        return await _end_process(descriptor, grace)


async def _end_work(control: ControlClient, target: Target, deadline: float) -> str:
    """Take it off the device; why that was not done, "" when it was."""
    try:
        if target.pid not in await control.ask(GetClientList(target.server)):
            return f"server {target.server} does not name it as its client now"
        code = await control.ask(TerminateClient(target.server, target.pid), deadline=deadline)
    except (ControlError, UnexpectedReply) as error:
        return error.message
    if code != 0:
        return f"the daemon could not end its work, CUDA error {code}"
    return ""


async def _end_process(descriptor: int, grace: float) -> Ending:
    if await _is_ended(descriptor, grace):
        return Ending(True, "the daemon ended its work, and it ended by itself")
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return Ending(False, "the daemon ended its work, but it may not be sent signals")
        if await _is_ended(descriptor, grace):
            return Ending(True, f"the daemon ended its work, and {number.name} the process")
    return Ending(False, "the daemon ended its work, but the process remains although killed")


async def _is_ended(descriptor: int, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await ended(descriptor)
    except TimeoutError:
        return False
    return True
