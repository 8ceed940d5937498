"""The records of use as a part of the agent: taken up at its start, written now and then, and the
names of workloads in them, which the API server is asked for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.pacing import Backoff
from nodeagent.telemetry.accounting import Accounts
from nodeagent.use.digest import PodKey
from nodeagent.use.state_file import use_file
from nodeagent.waiting import uncancelled

log = structlog.get_logger(__name__)

ListWorkloads = Callable[[], Awaitable[Mapping[PodKey, str]]]

_INTERVAL = 300.0  # seconds between two writes, which is as much as a kill loses
_LOOK = 2.0  # seconds between looks for pods whose workloads are not known
_LIST, _LONGEST = 10.0, 300.0  # seconds between two lists of pods at least, and after failures
_PATIENCE = 600.0  # seconds after which a pod's name has to do


class UseService:
    """Keeps the records of `accounts` from `load` on, while `run` runs and at its end.

    `workloads` asks for those of the node's pods; None: their names are by those of the pods.
    """

    def __init__(
        self, path: Path | None, accounts: Accounts, workloads: ListWorkloads | None = None
    ) -> None:
        self.file = use_file(path)
        self._accounts = accounts
        self._workloads = workloads
        accounts.workloads = {} if workloads else None

    async def load(self) -> None:
        kept = await asyncio.to_thread(self.file.load)
        if kept is not None:
            self._accounts.records.restore(kept, time.time())
        if self.file.problem:
            log.warning(self.file.problem.message, remedy=self.file.problem.remedy)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._keep_on(), name="write")
                if self._workloads:
                    parts.create_task(self._settle(self._workloads), name="workloads of pods")
        finally:
            await self._keep()

    async def _settle(self, list_workloads: ListWorkloads) -> None:
        """Have pods count for their workloads soon after they began to count."""
        since: dict[PodKey, float] = {}
        pause, backoff, clock = _LOOK, Backoff(_LIST, _LONGEST), asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(pause)
            now, pause = clock(), _LOOK
            since = {pod: since.get(pod, now) for pod in self._accounts.records.pods}
            if not since:
                continue
            found = {pod: "" for pod, began in since.items() if now - began >= _PATIENCE}
            try:
                listed = await list_workloads()
                found |= {pod: listed[pod] for pod in since if pod in listed}
                backoff.reset()
                pause = _LIST
            except NodeagentError as error:
                log.debug("the workloads of pods are not known", error=error.message)
                pause = backoff.next()
            self._accounts.settle(found)

    async def _keep_on(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await self._keep()

    async def _keep(self) -> None:
        """A write that was begun is waited for: its thread would go on beside the next one."""
        kept = self._accounts.records.kept(time.time())
        if not (kept.newer or kept.older):
            return
        try:
            await uncancelled(asyncio.to_thread(self.file.save, kept))
        except NodeagentError as error:
            log.warning(error.message, remedy=error.remedy)
