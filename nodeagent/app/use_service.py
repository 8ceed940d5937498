"""The records of use as a part of the agent: taken up at its start, written now and then."""

import asyncio
import time
from pathlib import Path

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.uncancelled import uncancelled
from nodeagent.use.records import Records
from nodeagent.use.state_file import use_file

log = structlog.get_logger(__name__)

_INTERVAL = 300.0  # seconds between two writes, which is as much as a kill loses


class UseService:
    """Keeps `records` from `load` on, while `run` runs and at its end."""

    def __init__(self, path: Path | None, records: Records) -> None:
        self.file = use_file(path)
        self._records = records

    async def load(self) -> None:
        kept = await asyncio.to_thread(self.file.load)
        if kept is not None:
            self._records.restore(kept, time.time())
        if self.file.problem:
            log.warning(self.file.problem.message, remedy=self.file.problem.remedy)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                await self._keep()
        finally:
            await self._keep()

    async def _keep(self) -> None:
        """A write that was begun is waited for: its thread would go on beside the next one."""
        kept = self._records.kept(time.time())
        if not (kept.newer or kept.older):
            return
        try:
            await uncancelled(asyncio.to_thread(self.file.save, kept))
        except NodeagentError as error:
            log.warning(error.message, remedy=error.remedy)
