"""The agent's own files, looked after while it runs: its state, its lock, its run directory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from nodeagent.app.paths import Paths
from nodeagent.errors import NodeagentError
from nodeagent.execute.writer_lock import OtherWriter, WriterLock
from nodeagent.files.state import StateFile
from nodeagent.plan.problems import Code, Problem

log = structlog.get_logger(__name__)

_INTERVAL = 1.0  # seconds between two looks
_REMEMBERED = 600.0  # seconds that a loss is a problem after it was repaired


class OwnFiles:
    """Checks them; `problems` says what is wrong, `changed` is called when that changes.

    What was deleted is made again, then `repaired` is called to restore what else the run
    directory held.
    """

    def __init__(
        self,
        paths: Paths,
        lock: WriterLock | None,
        files: Sequence[StateFile[Any]],
        *,
        changed: Callable[[], None],
        repaired: Callable[[], Awaitable[None]],
    ) -> None:
        self._paths = paths
        self._lock = lock
        self._files = files
        self._changed = changed
        self._repaired = repaired
        self._unusable: Problem | None = None  # of the run directory, now
        self._lost: dict[Path, float] = {}  # deleted paths, and when by the event loop's clock

    @property
    def problems(self) -> tuple[Problem, ...]:
        kept = (file.problem for file in self._files)
        states = tuple(Problem(Code.STATE_FILE, p.message, p.remedy) for p in kept if p)
        run = self._unusable or self._loss()
        return (*states, run) if run else states

    def lost(self, path: Path) -> None:
        """A file was deleted under the agent, and is made again by the caller."""
        if path not in self._lost:
            log.warning("deleted under the running agent; it is made again", path=str(path))
        self._lost[path] = time.monotonic()

    async def run(self) -> None:
        """Look at them every so often, until cancelled; raises OtherWriter when the agent is not
        the only one any more.
        """
        known = self.problems
        while True:
            await asyncio.sleep(_INTERVAL)
            deleted = await asyncio.to_thread(self._look)
            for path in deleted:
                self.lost(path)
            if deleted:
                await self._repaired()
            now = time.monotonic()
            self._lost = {p: at for p, at in self._lost.items() if now - at < _REMEMBERED}
            if self.problems != known:
                known = self.problems
                self._changed()

    def _look(self) -> tuple[Path, ...]:
        """What was deleted and made again just now."""
        for file in self._files:
            file.review()
        deleted: list[Path] = []
        try:
            directory = self._paths.make_run_directory()
            deleted += self._paths.make_state_directory()
            deleted += self._lock.take() if self._lock else ()
            self._unusable = _not_writable(directory) if directory else None
        except OtherWriter:
            raise
        except NodeagentError as error:
            self._unusable = Problem(Code.RUN_DIRECTORY, error.message, error.remedy)
        except OSError as error:  # a file system that fails, or a path that goes right now
            path = error.filename or self._paths.settings.run.dir
            self._unusable = Problem(
                Code.RUN_DIRECTORY,
                f"{path} cannot be examined: {error.strerror or error}",
                f"run namei -l {path} and mend the first path that it cannot show, or its file "
                "system",
            )
        return tuple(dict.fromkeys(deleted))

    def _loss(self) -> Problem | None:
        if not self._lost:
            return None
        names = ", ".join(sorted(map(str, self._lost)))
        return Problem(
            Code.RUN_DIRECTORY,
            f"deleted or replaced under the running agent, and made again: {names}",
            "find what does that, such as a cleanup job or systemd-tmpfiles, and let it leave "
            f"these paths alone; this is shown for {_REMEMBERED / 60:.0f} minutes",
        )


async def until_gone(path: Path) -> None:
    """Wait until the path leads to another file than now, or to none."""
    before = await asyncio.to_thread(_identity, path)
    while before is not None:
        await asyncio.sleep(_INTERVAL)
        if await asyncio.to_thread(_identity, path) != before:
            return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _not_writable(directory: Path) -> Problem | None:
    if os.access(directory, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    return Problem(
        Code.RUN_DIRECTORY,
        f"run.dir {directory} cannot be written"
        + (": its file system is mounted read-only" if read_only else ""),
        f"mount -o remount,rw {directory}" if read_only else f"chown {os.geteuid()} {directory}",
    )
