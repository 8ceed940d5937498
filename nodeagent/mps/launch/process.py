"""One control daemon's process: found again after an earlier agent, waited for, killed.

It outlives this agent.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nodeagent.errors import NodeagentError
from nodeagent.mps.processes import CONTROL, Identity, ended, identify
from nodeagent.mps.shares import DaemonSpec

UNKNOWN_END = "its status is not known"


class StartError(NodeagentError):
    """The daemon's process could not be started."""


class NotTheDaemon(NodeagentError):
    """The process is not the daemon it was taken for, and is left alone."""


class DaemonProcess:
    """A running daemon, this process' child or not; made inside the event loop.

    `find_end` says in words how it ended, once it has; who cannot know leaves it out.
    """

    def __init__(
        self, identity: Identity, find_end: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        self.identity = identity
        self._find_end = find_end
        self._descriptor = os.pidfd_open(identity.pid)
        self._ended = asyncio.create_task(self._until_ended(), name="mps end")
        self._ended.add_done_callback(lambda _: os.close(self._descriptor))

    @property
    def pid(self) -> int:
        return self.identity.pid

    async def wait(self) -> str:
        """Until it ends: how, in words. Any number of tasks may wait."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill it, if it is still there; `wait` returns when it is gone."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Look at it no more. It runs on."""
        self._ended.cancel()

    async def _until_ended(self) -> str:
        await ended(self._descriptor)
        if self._find_end is None:
            return f"{UNKNOWN_END}, because an earlier agent started it"
        return await self._find_end()


def adopt(identity: Identity, spec: DaemonSpec) -> DaemonProcess:
    """Take over a daemon that an earlier agent started and noted as `identity`.

    Raises NotTheDaemon with the first thing that differs.
    """
    try:
        process = DaemonProcess(identity)
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


def in_words(status: int) -> str:
    """A process' status as `subprocess` gives it: below 0 for the signal that ended it."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
