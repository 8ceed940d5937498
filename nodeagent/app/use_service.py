"""The records of use as a part of the agent: taken up at its start, written now and then, and the
names of workloads in them, which the API server is asked for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from itertools import count
from pathlib import Path
from typing import Final

import structlog
from msgspec import json

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.gpu.kernel import boot_id
from nodeagent.telemetry.accounting import Accounts
from nodeagent.use.advice import Advice, advise, most_first
from nodeagent.use.records import KeptRecords, PodKey, Records
from nodeagent.waiting import uncancelled

log = structlog.get_logger(__name__)

FILE_NAME: Final = "use.json"
ListWorkloads = Callable[[], Awaitable[Mapping[PodKey, str]]]

_INTERVAL = 30.0  # seconds between two lists of pods, where there are new ones, and two advices
_MAX_BYTES = 8 << 20  # a digest takes 2 KiB with the longest names
_WRITE = 10  # times as much between two writes, which a kill loses


def use_file(path: Path | None) -> StateFile[KeptRecords]:
    """The records in a file, so that they outlive the agent; `path` None: nothing is kept."""
    decode = json.Decoder(KeptRecords).decode
    return StateFile(path, StateFormat("use", 1, _MAX_BYTES, json.encode, decode))


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
        self._days = days

    async def load(self) -> None:
        kept, boot = await asyncio.to_thread(lambda: (self.file.load(), boot_id()))
        self._accounts.records = Records(self._days, kept, time.time(), boot)
        if self.file.problem:
            log.warning(self.file.problem.message, remedy=self.file.problem.remedy)

    async def run(self) -> None:
        try:
            for turn in count(1):
                await self._name_workloads()
                held = {labels for _, labels in self._accounts.held()}
                self._accounts.advice = await self.advice(held)
                await asyncio.sleep(_INTERVAL)
                if turn % _WRITE == 0:
                    await self._keep()
        finally:
            await self._keep()

    async def advice(self, held: Container[tuple[str, ...]] | None = None) -> tuple[Advice, ...]:
        """What would do for each holder, or each that has something now; those that free most
        first. Of 500 it takes a tenth of a second: others have their turns in between.
        """
        found = []
        for use in self._accounts.records.uses():
            of, device = use.holder, use.grant.device
            if held is None or (of.container, of.namespace, of.name, device) in held:
                found.append(advise(use, self._accounts.gpus))
            await asyncio.sleep(0)
        return most_first(found)

    async def _name_workloads(self) -> None:
        """Have pods count for their workloads, those that have gone by their names. The server's
        cache may be behind: one that holds something is there, though not listed.
        """
        if pods := self._accounts.records.pods:
            try:
                listed = await self._workloads() if self._workloads else {}
            except NodeagentError as error:
                log.debug("the workloads of pods are not known", error=error.message)
            else:
                known = {**dict.fromkeys(pods - self._accounts.pods, ""), **listed}
                self._accounts.name_workloads({pod: known[pod] for pod in pods & known.keys()})

    async def _keep(self) -> None:
        """A write that was begun is waited for: its thread would go on beside the next one."""
        kept = self._accounts.records.kept(time.time())
        if not (kept.newer or kept.older):
            return
        try:
            await uncancelled(asyncio.to_thread(self.file.save, kept))
        except NodeagentError as error:
            log.warning(error.message, remedy=error.remedy)
