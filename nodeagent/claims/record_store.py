"""The records of this node's claims, in memory as they are on the disk.

A claim is what its record says, also where none are served (`dra.mode` was switched off, or the
agent is stopped): a pod may have a slice that no process uses at the moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from nodeagent.claims.files.records import (
    UnreadableRecord,
    read_records,
    remove_record,
    remove_unfinished,
    write_record,
)
from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.planned import beside_records
from nodeagent.errors import NodeagentError
from nodeagent.gpu.kernel import boot_id
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace
from nodeagent.text import listed
from nodeagent.uncancelled import uncancelled


class RecordStore:
    """The records in `folder`; `load` first. A record that is `unreadable` holds back its GPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, ClaimRecord] = {}
        self.unreadable: tuple[UnreadableRecord, ...] = ()

    @property
    def records(self) -> tuple[ClaimRecord, ...]:
        return tuple(self._records.values())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Records that cannot be used."""
        return tuple(Problem.from_error(Code.STATE_FILE, u) for u in self.unreadable)

    def get(self, uid: str) -> ClaimRecord | None:
        return self._records.get(uid)

    def others(self, record: ClaimRecord) -> list[ClaimRecord]:
        """The records of all other claims."""
        return [other for other in self._records.values() if other.uid != record.uid]

    def beside(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there."""
        return beside_records(goal, gpu, self.records, self.unreadable)

    def refuse_unreadable(self, uid: str) -> None:
        """Raise NodeagentError where a record that cannot be read may be that claim's."""
        for unreadable in self.unreadable:
            if unreadable.uid in (uid, ""):
                raise NodeagentError(unreadable.message, remedy=unreadable.remedy)

    # --- the disk -------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the records. Raises nothing: what cannot be read holds back its GPUs."""
        await asyncio.to_thread(remove_unfinished, self._folder)
        self._records.clear()
        self._take(await asyncio.to_thread(read_records, self._folder), lambda _: True)

    async def reread(self) -> None:
        """Read again what could not be read: a person may have mended or removed it by now."""
        waiting = {unreadable.uid for unreadable in self.unreadable}
        if waiting:
            found = await asyncio.to_thread(read_records, self._folder)
            self._take(found, lambda record: not waiting.isdisjoint((record.uid, "")))

    def _take(
        self,
        found: Iterable[ClaimRecord | UnreadableRecord],
        counts: Callable[[ClaimRecord], bool],
    ) -> None:
        """Take over the records that are new and count."""
        found = tuple(found)
        self.unreadable = tuple(one for one in found if isinstance(one, UnreadableRecord))
        for record in found:
            if isinstance(record, ClaimRecord) and counts(record):
                self._records.setdefault(record.uid, record)

    async def keep(self, record: ClaimRecord) -> None:
        """Write the record before anything is begun. Work that is cancelled (the kubelet's
        directory went, say) ends with its write, and not before: the next would meet it.
        """
        if self._records.get(record.uid) != record:
            await uncancelled(self._write(replace(record, since=time.time())))

    async def _write(self, record: ClaimRecord) -> None:
        await asyncio.to_thread(write_record, self._folder, record)
        self._records[record.uid] = record

    async def remove(self, uid: str) -> None:
        await asyncio.to_thread(remove_record, self._folder, uid)
        del self._records[uid]


class LeftRecords(RecordStore):
    """Records of claims that are not served. Nothing that was made for a claim outlives the
    machine's start, so only those of this start count.
    """

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises NodeagentError where it is not known which start this is. Blocks on the disk."""
        left = cls(folder)
        left._take(read_records(folder), lambda record: record.boot_id == boot_id())
        return left

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Claims that are not going to be released, beside records that cannot be read."""
        if not self._records:
            return super().problems
        titles = listed([record.title for record in self.records])
        return (*super().problems, Problem.of(Code.IN_USE, "claimsLeft", claims=titles))
