"""The plan file as a plan source: reads it when it changes and offers what it finds."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

from nodeagent.documents.bounded_yaml import LARGEST_TEXT
from nodeagent.planning.problems import Code, Problem
from nodeagent.sources.file_watch import changes
from nodeagent.sources.plan_offer import NoPlan, PlanOffer, PlanText, UnreadablePlan

_Signature = tuple[int, ...] | str


class PlanFile:
    """Watches one file and offers its content whenever that is another.

    The file may be missing, appear, vanish, be replaced, or lie behind links. It is read only
    when its inode, size or times say that it changed.
    """

    def __init__(
        self,
        path: Path,
        offer: Callable[[PlanOffer], None],
        *,
        configuration: str | None = None,
        quiet: float = 0.05,
        look_every: float | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._offer = offer
        self._configuration = configuration
        self._quiet = quiet
        self._look_every = look_every
        self._alive = alive
        self._last: _Signature = ""

    async def run(self) -> None:
        """Offer what is there now, then every change, until cancelled."""
        async for _ in changes(self._path, quiet=self._quiet, at_least_every=self._look_every):
            await self.look()
            self._alive()

    async def look(self) -> None:
        """Offer the file's content if it is not the one offered last."""
        signature = await asyncio.to_thread(_signature, self._path)
        if isinstance(signature, str) and isinstance(self._last, tuple):
            # An editor may be between taking the old file away and putting the new one there.
            await asyncio.sleep(4 * self._quiet)
            signature = await asyncio.to_thread(_signature, self._path)
        if signature == self._last:
            return
        self._last = signature
        self._offer(await asyncio.to_thread(self._read))

    def _read(self) -> PlanOffer:
        try:
            return PlanText(_content(self._path), self._configuration)
        except FileNotFoundError:
            return NoPlan(f"the plan file {self._path} does not exist")
        except NotADirectoryError:
            return NoPlan(f"the plan file {self._path} does not exist: its folder is a file")
        except OSError as error:
            return UnreadablePlan(
                Problem(
                    Code.SYNTAX,
                    f"the plan file {self._path} cannot be read: {error.strerror or error}",
                    remedy="a regular file that the agent may read is needed there",
                )
            )


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError as error:
        return f"errno {error.errno}"
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _content(path: Path) -> bytes:
    """The file's first bytes; raises OSError also when it is no regular file.

    Opened without waiting, so that a named pipe does not hang the agent.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        # `open` refuses the descriptor of a directory and then leaves it open.
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST_TEXT)  # a text of this size is refused already
    finally:
        os.close(descriptor)
