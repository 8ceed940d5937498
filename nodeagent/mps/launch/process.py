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
from nodeagent.mps.processes import CONTROL, MpsProcess, mps_process, process_end
from nodeagent.mps.shares import DaemonSpec

UNKNOWN_END = "its status is not known"


class StartError(NodeagentError):
    """The daemon's process could not be started."""


class DaemonProcess:
    """A running daemon, this process' child or not; made inside the event loop.

    `find_end` says in words how it ended, once it has; who cannot know leaves it out.
    """

    def __init__(
        self, identity: MpsProcess, find_end: Callable[[], Awaitable[str]] | None = None
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
        await process_end(self._descriptor)
        if self._find_end is None:
            return f"{UNKNOWN_END}, because an earlier agent started it"
        try:
            return await self._find_end()
        except Exception:  # noqa: BLE001  # it has ended, and the next start waits for that alone
            return UNKNOWN_END


def identity_of(pid: int, spec: DaemonSpec) -> MpsProcess:
    """Of a process that was just started as `spec`; without a start time where it has ended."""
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
    is_it = False
    try:  # identified only now, when the pid cannot be used again unnoticed
        is_it = await asyncio.to_thread(mps_process, identity.pid) == daemon
    finally:
        if not is_it:
            process.close()
    return process if is_it else None


def in_words(status: int) -> str:
    """A process' status as `subprocess` gives it: below 0 for the signal that ended it."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
