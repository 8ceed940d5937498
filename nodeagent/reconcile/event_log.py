"""The last events of this agent's life, kept in memory, and the readers that follow them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class EventType(StrEnum):
    """What happened. Kubernetes Events carry these as their reasons."""

    STARTED = "Started"
    STOPPING = "Stopping"
    PLAN_ACCEPTED = "PlanAccepted"
    PLAN_REJECTED = "PlanRejected"
    PLAN_MISSING = "PlanMissing"
    APPLIED = "Applied"
    BLOCKED = "Blocked"
    RESTORED = "Restored"
    FAILED = "Failed"
    DRIFT = "Drift"
    GPU_LOST = "GpuLost"
    GPU_RETURNED = "GpuReturned"
    GPU_UNHEALTHY = "GpuUnhealthy"  # nothing new belongs there
    GPU_DEGRADED = "GpuDegraded"
    GPU_UNKNOWN = "GpuUnknown"
    GPU_NOTICE = "GpuNotice"  # reported, though the GPU is healthy
    GPU_RECOVERED = "GpuRecovered"
    XID = "Xid"  # a driver error that calls for nothing
    DRIVER_UNAVAILABLE = "DriverUnavailable"
    DRIVER_RETURNED = "DriverReturned"
    MPS_STARTED = "MpsStarted"
    MPS_READY = "MpsReady"
    MPS_ENDED = "MpsEnded"  # by itself; it is started again
    MPS_FAULT = "MpsFault"  # there, but not as it should be
    MPS_FAILED = "MpsFailed"  # given up until a new plan or a request
    MPS_DRAINED = "MpsDrained"
    MPS_IN_USE = "MpsInUse"
    OTHER_OWNER = "OtherOwner"  # another program partitions the GPUs, too
    UNCHECKED = "Unchecked"  # whether anybody does could not be asked
    CONTESTED = "Contested"  # another program overwrites what the agent writes on the Node
    EVICTED = "Evicted"
    NOT_OFFERED = "NotOffered"  # the node does not offer to pods what its GPUs are
    MPS_CLIENT = "MpsClient"  # a client waits for ever, or has what it should not


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `id` grows by one from event to event; `gpu` is a UUID or "".
    `before` and `after` are the layouts of a GPU that was changed, in words.
    """

    id: int
    time: datetime
    type: EventType
    message: str
    gpu: str = ""
    before: str = ""
    after: str = ""


class Follower:
    """One reader of new events; async iteration ends when it fell too far behind, or at the end
    of the log.
    """

    def __init__(self, backlog: list[Event], capacity: int) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._capacity = capacity
        self.dropped = False
        for event in backlog:
            self._queue.put_nowait(event)

    def deliver(self, event: Event) -> None:
        """Hand over an event; a reader who does not keep up is dropped instead of waited for."""
        if self.dropped:
            return
        if self._queue.qsize() >= self._capacity:
            self.dropped = True
            self.end()
            return
        self._queue.put_nowait(event)

    def end(self) -> None:
        """No more events will come."""
        self._queue.put_nowait(None)

    async def next(self) -> Event | None:
        """Wait for the next event; None when there will be no more."""
        return await self._queue.get()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event


def _now() -> datetime:
    return datetime.now(UTC)


class EventLog:
    """A ring of the last `size` events."""

    def __init__(
        self,
        *,
        size: int = 500,
        follower_capacity: int = 1000,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._followers: set[Follower] = set()
        self._follower_capacity = follower_capacity
        self._now = now
        self._next_id = 1
        self._closed = False

    @property
    def events(self) -> tuple[Event, ...]:
        """The events still kept, oldest first."""
        return tuple(self._events)

    def add(
        self, kind: EventType, message: str, *, gpu: str = "", before: str = "", after: str = ""
    ) -> Event:
        """Note an event and hand it to everyone who follows."""
        event = Event(self._next_id, self._now(), kind, message, gpu, before, after)
        self._next_id += 1
        self._events.append(event)
        for follower in self._followers:
            follower.deliver(event)
        return event

    @contextmanager
    def following(self, *, after: int | None = None) -> Iterator[Follower]:
        """Follow new events; with `after`, first those kept whose id is greater.

        An `after` from an earlier life of the agent (greater than any id given out) brings all.
        """
        known = after if after is not None and after < self._next_id else 0
        backlog = [] if after is None else [e for e in self._events if e.id > known]
        follower = Follower(backlog, self._follower_capacity)
        self._followers.add(follower)
        if self._closed:
            follower.end()
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """End all followers, and those who come later at once."""
        self._closed = True
        for follower in self._followers:
            follower.end()
