"""Keeps things on the API server as they are wanted: the one loop behind everything that the agent
writes there.

A `Keeper` decides what is sent next, and when; an adapter knows one kind of object: how what is
wanted of it differs from what is there, and how the difference is sent. Requests are spaced. One
that fails is built anew, from what is wanted and what is there by then, with backoff; what was
refused waits alone, and holds up nothing else.
"""

import asyncio
import random
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.pacing import Allowance, Backoff
from nodeagent.structs import Struct
from nodeagent.waiting import ends_within

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Key_contra = TypeVar("Key_contra", contravariant=True)

_READ_AGAIN_INTERVAL = 60.0  # seconds until what is there is read again, after a failure
_DENIALS_AT_START = 3  # denials that may all be of a server that starts
_MANY_OVERWRITES = 3  # of the same part, in a row; a person who edits by hand stops before


class Adapter(Protocol[Key_contra, Value]):
    """One kind of object for a `Keeper`."""

    def difference(self, key: Key_contra, value: Value, /) -> Value | None:
        """The part of `value` to be sent; None when all is there, or nothing can be sent now."""

    async def send(self, key: Key_contra, part: Value, /) -> None:
        """Send the part. Raises `ClusterFault`, but for faults that it handles itself."""

    async def read_again(self) -> None:
        """Read what is there again, after a write conflict. Raises `ClusterFault`."""


class WriteIntervals(Struct, frozen=True):
    """Times in seconds; pairs are the first and the longest wait of a backoff.

    After a quiet time `burst` requests for a key go at once; only continuous changes are held to
    one per `interval`. With `shared` that holds for all keys together.
    """

    interval: float = 0.5
    burst: int = 10
    shared: bool = False
    retry: tuple[float, float] = (0.5, 30.0)
    denied: tuple[float, float] = (0.5, 300.0)  # after a final refusal, the longest at once


class _Entry(Struct, Generic[Value]):
    """One key: what is wanted, and how writing it went."""

    value: Value
    allowance: Allowance
    denials: Backoff
    overwrites: Backoff
    sent: Value | None = None  # the last part sent of this `value`
    refused: Value | None = None  # the part not sent before `again_at`; None: any part
    again_at: float = -inf
    fault: ClusterFault | None = None  # of the last request
    overwritten: Value | None = None
    overwritten_at: float = -inf
    rewrite_at: float = -inf

    def is_refused(self, part: Value, now: float) -> bool:
        return now < self.again_at and (self.refused is None or self.refused == part)


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Keeper(Generic[Key, Value]):
    """Keeps each key as wanted while `run` runs.

    `on_fault` gets a fault when writing breaks or breaks in another way, and None once nothing that
    is still to be written has failed. `on_overwritten` gets the part of a value that another
    program sets back again and again. `jitter` gives numbers in [0, 1).
    """

    adapter: Adapter[Key, Value]
    intervals: WriteIntervals = field(default_factory=WriteIntervals)
    on_fault: Callable[[ClusterFault | None], object] = lambda _: None
    on_overwritten: Callable[[Any], object] = lambda _: None
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self._entries: dict[Key, _Entry[Value]] = {}  # the key tried last comes last
        self._shared = self._allowance()
        self._backoff = Backoff(*self.intervals.retry, spread=1.0, jitter=self.jitter)
        self._not_before = -inf  # a backoff for all keys, which spares the server
        self._read_again_at = inf
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self.fault: ClusterFault | None = None  # why something is not written

    def want(self, key: Key, value: Value) -> None:
        """Want this of the key from now on, in place of what was wanted of it before."""
        entry = self._entries.get(key)
        if entry is None:
            allowance = self._shared if self.intervals.shared else self._allowance()
            denials = Backoff(*self.intervals.denied, spread=0.5, jitter=self.jitter)
            overwrites = Backoff(*self.intervals.retry, spread=1.0, jitter=self.jitter)
            self._entries[key] = _Entry(value, allowance, denials, overwrites)
        elif entry.value == value:
            return
        else:
            entry.value, entry.sent = value, None
            entry.rewrite_at = -inf  # another value does not wait for the overwriting to end
        self._wake()

    def forget(self, key: Key) -> None:
        """Want nothing of the key any more; what is there stays."""
        if self._entries.pop(key, None) is not None:
            self._wake()

    def changed(self, *, forget_sent: bool = False) -> None:
        """Compare again. `forget_sent`: a part that is then sent again was not overwritten."""
        for entry in self._entries.values():
            if forget_sent:
                entry.sent = None
            if isinstance(entry.fault, faults.ObjectMissing):
                entry.again_at = -inf
        self._wake()

    @property
    def keys(self) -> frozenset[Key]:
        """The keys for which something is wanted."""
        return frozenset(self._entries)

    @property
    def overwritten(self) -> tuple[Value, ...]:
        """The parts that another program keeps setting to something else."""
        return tuple(
            entry.overwritten
            for entry in self._entries.values()
            if entry.overwritten is not None and entry.overwrites.failures >= _MANY_OVERWRITES
            if self._is_recent(entry)
        )

    async def settled(self) -> None:
        """Wait until there is nothing that could be written now."""
        await self._settled.wait()

    async def run(self) -> NoReturn:
        while True:
            self._changed.clear()
            if _now() >= self._may_read_again_at():
                await self._read_again()
            found = self._next()
            self._end_fault()
            if found is None:
                self._settled.set()
                due_at = self._next_refused()
            else:
                due_at, key, part = found
                if due_at <= _now():
                    await self._send(key, part)
                    continue
            due_at = min(due_at, self._may_read_again_at())
            await ends_within(due_at - _now(), self._changed.wait())

    def _wake(self) -> None:
        self._settled.clear()
        self._changed.set()

    def _allowance(self) -> Allowance:
        return Allowance(interval=self.intervals.interval, burst=self.intervals.burst)

    # --- what is sent next ------------------------------------------------------------------------

    def _next(self) -> tuple[float, Key, Value] | None:
        """The next part to send: when, of which key, and its value; by turns if several may go."""
        now, first = _now(), None
        for key, entry in self._entries.items():
            at = max(now, self._not_before, entry.rewrite_at, entry.allowance.next_at())
            if first is not None and at >= first[0]:
                continue
            part = self.adapter.difference(key, entry.value)
            if part is not None and not entry.is_refused(part, now):
                first = at, key, part
        return first

    def _next_refused(self) -> float:
        """The time of the first retry of what was refused; infinity when nothing was."""
        now = _now()
        return min((e.again_at for e in self._entries.values() if e.again_at > now), default=inf)

    def _may_read_again_at(self) -> float:
        return max(self._read_again_at, self._not_before)

    # --- one request ------------------------------------------------------------------------------

    async def _read_again(self) -> None:
        self._read_again_at = _now() + _READ_AGAIN_INTERVAL
        with suppress(ClusterFault):
            await self.adapter.read_again()
            self._read_again_at = inf
            self._wake()

    async def _send(self, key: Key, part: Value) -> None:
        entry = self._entries[key]
        entry.allowance.take(_now())
        try:
            await self.adapter.send(key, part)
        except ClusterFault as fault:
            entry.fault = fault
            self._wait_after(fault, entry, part)
            before, self.fault = self.fault, fault
            if type(before) is not type(fault):
                self.on_fault(fault)
        else:
            self._backoff.reset()
            entry.denials.reset()
            entry.again_at, entry.fault = -inf, None
            if entry.sent == part:
                self._note_overwritten(entry, part)
            entry.sent = part
        if self._entries.get(key) is entry:
            self._entries[key] = self._entries.pop(key)

    def _wait_after(self, fault: ClusterFault, entry: _Entry[Value], part: Value) -> None:
        now, asked_for = _now(), fault.retry_after or 0.0
        match fault:
            case faults.RequestRefused() | faults.ObjectMissing():
                # `changed` ends the wait when a missing object is there again. It does not come
                # where a proxy made the 404 up.
                entry.refused, entry.again_at = part, now + self.intervals.denied[1]
            case faults.NotAllowed() | faults.DisruptionRefused():
                # A server that starts forbids everything until it has read the roles: so the first
                # denials hold the whole key, later ones only the content that was refused.
                entry.again_at = now + entry.denials.next(asked_for)
                entry.refused = part if entry.denials.failures > _DENIALS_AT_START else None
            case _:
                if isinstance(fault, faults.WriteConflict):
                    self._read_again_at = now
                self._not_before = now + self._backoff.next(asked_for)

    def _end_fault(self) -> None:
        """Drop the fault once nothing that is to be sent has failed; else keep one that counts."""
        if self.fault is None:
            return
        failed = [e for k, e in self._entries.items() if e.fault and self._differs(k, e)]
        if not failed:
            self.fault = None
            self.on_fault(None)
        elif not any(entry.fault is self.fault for entry in failed):
            self.fault = failed[-1].fault

    def _differs(self, key: Key, entry: _Entry[Value]) -> bool:
        return self.adapter.difference(key, entry.value) is not None

    def _is_recent(self, entry: _Entry[Value]) -> bool:
        return _now() - entry.overwritten_at <= 2 * self.intervals.retry[1]

    def _note_overwritten(self, entry: _Entry[Value], part: Value) -> None:
        """Another program overwrites what is written: write again, with backoff."""
        if not self._is_recent(entry):
            entry.overwrites.reset()
        entry.overwritten, entry.overwritten_at = part, _now()
        entry.rewrite_at = entry.overwritten_at + entry.overwrites.next()
        if entry.overwrites.failures == _MANY_OVERWRITES:
            self.on_overwritten(part)
