"""The records of use as a part of the agent: taken up at its start, written now and then, and the
names of workloads in them, which the API server is asked for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.telemetry.accounting import Accounts
from nodeagent.use.digest import PodKey
from nodeagent.use.records import Records
from nodeagent.use.state_file import use_file
from nodeagent.waiting import uncancelled

log = structlog.get_logger(__name__)

ListWorkloads = Callable[[], Awaitable[Mapping[PodKey, str]]]

_LIST = 30.0  # seconds between two lists of pods, where there are new ones
_WRITE = 10  # times as much between two writes, which a kill loses


class UseService:
    """Keeps the records of `accounts` from `load` on, while `run` runs and at its end.

    `workloads` asks for those of the node's pods; None: their names are by those of the pods.
    """

    def __init__(
        self, path: Path | None, accounts: Accounts, days: int, workloads: ListWorkloads | None
    ) -> None:
        self.file = use_file(path)
        self._accounts = accounts
        self._workloads = workloads
        accounts.records = Records(days)

    async def load(self) -> None:
        kept = await asyncio.to_thread(self.file.load)
        if kept is not None:
            self._accounts.records.restore(kept, time.time())
        if self.file.problem:
            log.warning(self.file.problem.message, remedy=self.file.problem.remedy)

    async def run(self) -> None:
        try:
            for turn in count(1):
                await self._settle()
                await asyncio.sleep(_LIST)
                if turn % _WRITE == 0:
                    await self._keep()
        finally:
            await self._keep()

    async def _settle(self) -> None:
        """Have pods count for their workloads, those that have gone by their names."""
        if pods := self._accounts.records.pods:
            try:
                listed = await self._workloads() if self._workloads else {}
            except NodeagentError as error:
                log.debug("the workloads of pods are not known", error=error.message)
            else:
                self._accounts.settle({pod: listed.get(pod, "") for pod in pods})

    async def _keep(self) -> None:
        """A write that was begun is waited for: its thread would go on beside the next one."""
        kept = self._accounts.records.kept(time.time())
        if not (kept.newer or kept.older):
            return
        try:
            await uncancelled(asyncio.to_thread(self.file.save, kept))
        except NodeagentError as error:
            log.warning(error.message, remedy=error.remedy)
