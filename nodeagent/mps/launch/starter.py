"""Prepares the ground for one device's daemon and starts it: what a dead one left is swept away
first, then its directories are made, then comes the process. One after the other, in this order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.files.directories import (
    directories_of,
    had_by_another,
    make_directories,
    remove_directories,
)
from nodeagent.mps.files.socket_gate import BackDoor
from nodeagent.mps.launch.launchers import Launcher
from nodeagent.mps.launch.orphans import OrphansLeft, end_orphans
from nodeagent.mps.launch.process import DaemonProcess
from nodeagent.mps.lifecycle.model import Spawn, SweepOrphans
from nodeagent.mps.shares import DaemonSpec

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
