"""The records of claims: one versioned file each, written before the hardware is changed, and in
memory as they are on the disk.

A record says what may have been made and for whom, so that a crash leaves a record without an
instance, never an instance without a record. What cannot be read holds back the GPUs that it may be
about: nothing new is made there until it can be read, or a person has removed it. A claim is what
its record says, also where none are served (`dra.mode` was switched off, or the agent is stopped):
a pod may have a slice that no process uses at the moment.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from msgspec import MsgspecError, json

from nodeagent.claims.model import UID, ClaimRecord
from nodeagent.claims.offering.planned import goal_with_claims
from nodeagent.claims.parts import reserved_on
from nodeagent.errors import NodeagentError
from nodeagent.files import state
from nodeagent.gpu.kernel import boot_id
from nodeagent.plan.desired import DesiredGpu, Reserved
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct, replace
from nodeagent.text import listed
from nodeagent.waiting import uncancelled

FOLDER: Final = "claims"  # below state.dir
MAX_BYTES: Final = 1 << 20  # bytes; a claim has at most 32 devices, of some 1,000 bytes each

_FILE = re.compile(rf"({UID.pattern})\.json")
_UNFINISHED = re.compile(rf"\.{UID.pattern}\.json\.new")


class RecordNotKept(NodeagentError):
    """A record cannot be written or removed; what was there is still there."""


class UnreadableRecord(Struct, frozen=True):
    """A record that cannot be used. `gpus` are the UUIDs that it is about, None: it may be any;
    `uid` is "" where not even the names of the records can be read.
    """

    path: Path
    uid: str
    reason: str
    gpus: frozenset[str] | None = None

    def concerns(self, gpu: str) -> bool:
        """Whether it may be about the GPU with that UUID."""
        return self.gpus is None or gpu in self.gpus

    @property
    def error(self) -> NodeagentError:
        where = "all GPUs" if self.gpus is None else ", ".join(sorted(self.gpus))
        return NodeagentError.of("recordUnusable", path=self.path, why=self.reason, where=where)


def write_record(folder: Path, record: ClaimRecord) -> None:
    """Put it in place of any earlier one. After a power cut it is that one, or whole.

    Raises RecordNotKept, with the earlier one still there. Blocks on the disk.
    """
    path = _path(folder, record.uid)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.write_state(path, _FORMAT, record)
    except OSError as error:
        raise _not_kept(path, f"of {record.title} cannot be kept", error) from error


def remove_record(folder: Path, uid: str) -> None:
    """Remove the record of a claim that has nothing any more; raises RecordNotKept. Blocks."""
    path = _path(folder, uid)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _not_kept(path, "cannot be removed", error) from error


def read_records(folder: Path) -> tuple[ClaimRecord | UnreadableRecord, ...]:
    """All there are, by uid, with what stands in for one that cannot be used. Raises nothing.

    Files with other names were not written by this agent, and are passed over. Blocks on the disk.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (UnreadableRecord(folder, "", error.strerror or str(error)),)
    uids = [match[1] for match in map(_FILE.fullmatch, names) if match]
    return tuple(_records(folder, uids))


def driver_in_force(
    wanted: str, records: Iterable[ClaimRecord | UnreadableRecord]
) -> tuple[str, Problem | None]:
    """The driver's name, and why it is another than `wanted`: by that of a claim the kubelet has
    the claim released.
    """
    held = [one for one in records if isinstance(one, ClaimRecord)]
    names = {result.driver for one in held for result in one.results}
    if not names or wanted in names:
        return wanted, None
    (name, *_), claims = names, listed([one.title for one in held])
    held_back = Problem.of(Code.IN_USE, "driverName", wanted=wanted, name=name, claims=claims)
    return name, held_back


def remove_unfinished(folder: Path) -> None:
    """Remove what a crash left of records that were never written. Blocks on the disk."""
    with suppress(OSError):
        for entry in folder.iterdir():
            if _UNFINISHED.fullmatch(entry.name):
                entry.unlink()


def _records(folder: Path, uids: list[str]) -> Iterator[ClaimRecord | UnreadableRecord]:
    for uid in uids:
        path = _path(folder, uid)
        try:
            record = state.read_state(path, _FORMAT)
        except state.StateUnusable as error:
            yield UnreadableRecord(path, uid, error.reason, _gpus_of_newer(error.newer))
            continue
        if record is not None and record.uid != uid:
            yield UnreadableRecord(path, uid, f"it is the record of {record.uid}")
        elif record is not None:
            yield record


def _path(folder: Path, uid: str) -> Path:
    if not UID.fullmatch(uid):
        raise ValueError(f"{uid[:80]!r} is not a uid of a claim")
    return folder / f"{uid}.json"


def _not_kept(path: Path, what: str, error: OSError) -> RecordNotKept:
    return RecordNotKept.of("recordNotKept", what=what, path=path, why=error.strerror or error)


# --- as JSON --------------------------------------------------------------------------------------


class _Header(Struct):
    """What the content of every version has."""

    gpus: frozenset[str]


class _Content(_Header):
    record: ClaimRecord


def _encode(record: ClaimRecord) -> bytes:
    content = json.encode(_Content(record.gpus, record), order="deterministic")
    return json.format(content, indent=1) + b"\n"


def _decode(content: bytes) -> ClaimRecord:
    return json.decode(content, type=_Content).record


def _gpus_of_newer(content: bytes | None) -> frozenset[str] | None:
    """None where the content is damaged, or does not say it."""
    if content is None:
        return None
    try:
        return json.decode(content, type=_Header).gpus or None
    except (MsgspecError, RecursionError, UnicodeDecodeError):
        return None


_FORMAT: state.StateFormat[ClaimRecord] = state.StateFormat("claim", 1, MAX_BYTES, _encode, _decode)


# --- in memory ------------------------------------------------------------------------------------


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
        return tuple(Problem.from_error(Code.STATE_FILE, u.error) for u in self.unreadable)

    def get(self, uid: str) -> ClaimRecord | None:
        return self._records.get(uid)

    def others(self, record: ClaimRecord) -> list[ClaimRecord]:
        """The records of all other claims."""
        return [other for other in self._records.values() if other.uid != record.uid]

    def with_claims(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there, by their records. One that cannot
        be read may have any of it.
        """
        unreadable = (one for one in self.unreadable if one.concerns(gpu.uuid))
        held = [
            Reserved("", None, f"the record {one.path}, which cannot be read") for one in unreadable
        ]
        held += reserved_on(gpu.uuid, self.records)
        return goal_with_claims(goal, gpu, tuple(held), self.records)

    def refuse_unreadable(self, uid: str) -> None:
        """Raise NodeagentError where a record that cannot be read may be that claim's."""
        for unreadable in self.unreadable:
            if unreadable.uid in (uid, ""):
                raise unreadable.error

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
        self, found: Iterable[ClaimRecord | UnreadableRecord], counts: Callable[[ClaimRecord], bool]
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


class UnservedRecords(RecordStore):
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
