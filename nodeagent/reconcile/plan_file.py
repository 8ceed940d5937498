"""The plan file as a plan source: reads it when it changes and offers what it finds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.documents.bounded_yaml import MAX_TEXT
from nodeagent.files.state import read_regular_file
from nodeagent.files.watch import Signature, changes, signature
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan


@dataclass(slots=True)
class PlanFile:
    """Watches one file and offers its content whenever that has changed.

    The file may be missing, appear, vanish, be replaced, or lie behind links. It is read only
    when its inode, size or times say that it changed. `alive` is called after each look.
    """

    path: Path
    offer: Callable[[PlanUpdate], None]
    configuration: str | None = field(default=None, kw_only=True)
    quiet: float = field(default=0.05, kw_only=True)
    recheck_every: float | None = field(default=None, kw_only=True)
    alive: Callable[[], None] = field(default=lambda: None, kw_only=True)
    _last: Signature = ""

    async def run(self) -> None:
        """Offer what is there now, then every change, until cancelled."""
        async for _ in changes(self.path, quiet=self.quiet, at_least_every=self.recheck_every):
            await self.refresh()
            self.alive()

    async def refresh(self) -> None:
        found = await asyncio.to_thread(signature, self.path)
        if isinstance(found, str) and isinstance(self._last, tuple):
            # It was there and is not (text): an editor may be about to put a new one in its place.
            await asyncio.sleep(4 * self.quiet)
            found = await asyncio.to_thread(signature, self.path)
        if found == self._last:
            return
        update = await asyncio.to_thread(self._read)
        # What cannot be read now is tried again, even if its signature does not change.
        self._last = "" if isinstance(update, UnreadablePlan) else found
        self.offer(update)

    def _read(self) -> PlanUpdate:
        try:
            return PlanText(read_regular_file(self.path, MAX_TEXT), self.configuration)
        except FileNotFoundError:
            return self._missing(f"the plan file {self.path} does not exist")
        except NotADirectoryError:
            return self._missing(f"the plan file {self.path} does not exist: its folder is a file")
        except OSError as error:
            return UnreadablePlan(
                Problem.of(Code.SYNTAX, "file", file=self.path, why=error.strerror or error)
            )

    def _missing(self, why: str) -> NoPlan:
        problem = Problem.of(Code.SOURCE_MISSING, why=why, file=self.path)
        return NoPlan(why, problem)
