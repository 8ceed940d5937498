"""What the agent decided and why: each decision is logged and kept in memory by one call.

The events of an hour explain what happened without the log. They end with the agent.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

import structlog

from nodeagent.structs import replace
from nodeagent.views.shapes import Event
from nodeagent.views.text import time_json

log = structlog.get_logger(__name__)


_WARNING: Final = "a person should look at it"
_GOOD_TO_KNOW: Final = "good to know"
_ROUTINE: Final = "as it should be, in dozens: left out first where room is short"
# No Event about the Node: a claim has it, the Node shows it, or it is published as a step's result.
_KEPT: Final = "not on the Node"


class EventType(StrEnum):
    """What happened. Kubernetes Events about the Node and about claims carry these as reasons."""

    weight: str
    on_node: bool

    def __new__(cls, reason: str, weight: str = _WARNING, *kept: str) -> Self:
        made = str.__new__(cls, reason)
        made._value_ = reason
        made.weight = weight
        made.on_node = not kept
        return made

    STARTED = "Started", _GOOD_TO_KNOW
    STOPPING = "Stopping", _GOOD_TO_KNOW
    PLAN_ACCEPTED = "PlanAccepted", _GOOD_TO_KNOW
    PLAN_REJECTED = "PlanRejected"
    PLAN_MISSING = "PlanMissing", _GOOD_TO_KNOW
    SETTINGS_KEPT = "SettingsKept", _WARNING, _KEPT  # the file was changed, not what is in force
    STEP_DONE = "StepDone", _ROUTINE
    STEP_FAILED = "StepFailed", _WARNING, _KEPT
    STEP_SKIPPED = "StepSkipped", _GOOD_TO_KNOW, _KEPT
    APPLIED = "Applied", _GOOD_TO_KNOW
    CHANGED_FOR_CLAIM = "ChangedForClaim", _ROUTINE
    BLOCKED = "Blocked"
    RESTORED = "Restored", _GOOD_TO_KNOW
    FAILED = "Failed"
    DRIFT = "Drift"
    GPU_LOST = "GpuLost"
    GPU_UNHEALTHY = "GpuUnhealthy"  # no new work should run on it
    GPU_DEGRADED = "GpuDegraded"
    GPU_UNKNOWN = "GpuUnknown"
    GPU_NOTICE = "GpuNotice", _GOOD_TO_KNOW  # reported, though the GPU is healthy
    GPU_RECOVERED = "GpuRecovered", _GOOD_TO_KNOW
    XID = "Xid", _GOOD_TO_KNOW  # a driver error that calls for nothing
    DRIVER_UNAVAILABLE = "DriverUnavailable"
    DRIVER_RETURNED = "DriverReturned", _GOOD_TO_KNOW
    MPS_STARTED = "MpsStarted", _ROUTINE
    MPS_READY = "MpsReady", _ROUTINE
    MPS_ENDED = "MpsEnded"  # by itself; it is started again
    MPS_FAULT = "MpsFault"  # there, but not as it should be
    MPS_FAILED = "MpsFailed"  # several times in a row; tried again at the longest delay
    MPS_DRAINED = "MpsDrained", _GOOD_TO_KNOW
    MPS_IN_USE = "MpsInUse"
    MPS_CLIENT = "MpsClient"  # a client waits for ever, or has what it should not
    CLAIM_PREPARED = "ClaimPrepared", _ROUTINE
    CLAIM_WAITING = "ClaimWaiting", _WARNING, _KEPT  # not prepared yet; the kubelet tries again
    CLAIM_REFUSED = "ClaimRefused", _WARNING, _KEPT
    CLAIM_RELEASED = "ClaimReleased", _ROUTINE
    CLAIM_NOT_RELEASED = "ClaimNotReleased", _WARNING, _KEPT
    CLAIM_UNHEALTHY = "ClaimUnhealthy", _WARNING, _KEPT
    CLAIM_HEALTHY = "ClaimHealthy", _GOOD_TO_KNOW, _KEPT
    CLAIM_MISMATCH = "ClaimMismatch", _WARNING, _KEPT  # a pod cannot use its claim's devices so
    LESS_OFFERED = "LessOffered", _WARNING, _KEPT  # claims get less of a GPU than dra.mode promises
    CLUSTER_FAULT = "ClusterFault", _WARNING, _KEPT  # the API server is away, or refuses
    CLUSTER_RETURNED = "ClusterReturned", _GOOD_TO_KNOW, _KEPT
    NODE_CHANGED = "NodeChanged", _GOOD_TO_KNOW, _KEPT  # around a change: cordon, labels, taint
    PLUGIN_RESTARTED = "PluginRestarted", _GOOD_TO_KNOW, _KEPT  # a pod of the plugin was deleted
    OTHER_OWNER = "OtherOwner"  # another program partitions the GPUs, too
    UNCHECKED = "Unchecked"  # whether another program does is not known
    CONTESTED = "Contested"  # another program overwrites what the agent writes on the Node
    EVICTED = "Evicted", _GOOD_TO_KNOW
    NOT_OFFERED = "NotOffered"  # the node does not offer to pods what its GPUs are

    @property
    def is_warning(self) -> bool:
        return self.weight == _WARNING

    @property
    def is_routine(self) -> bool:
        return self.weight == _ROUTINE


LAST_SAID: Final = "; its last message: "  # then a line of a daemon's log, with its time and pid
_DIGEST: Final = re.compile(r"\bplan sha256:[0-9a-f]+\b")
_PROCESS: Final = re.compile(r"\b(?P<what>pid|server|process) \d+\b")
_OF_A_DAEMON: Final = frozenset(
    {
        EventType.MPS_STARTED,
        EventType.MPS_READY,
        EventType.MPS_ENDED,
        EventType.MPS_FAULT,
        EventType.MPS_FAILED,
    }
)


def lasting_message(event: Event) -> str:
    """The message without what differs each time and is no news: pids and log lines of daemons,
    digests of plans with the same fault.
    """
    if event.type == EventType.PLAN_REJECTED:
        return _DIGEST.sub("the plan", event.message)
    if event.type in _OF_A_DAEMON:
        message = event.message.partition(LAST_SAID)[0]
        return _PROCESS.sub(lambda m: "the " + m["what"].replace("pid", "process"), message)
    return event.message


def _subject(event: Event) -> Hashable:
    """The subject of the event: the newest of each subject is the last word about it."""
    return (event.type, event.gpu, event.device, event.claim)


def _content(event: Event) -> Hashable:
    """The part that two events have in common when one repeats the other."""
    return (_subject(event), lasting_message(event), event.reason, event.before, event.after)


class Follower:
    """A reader of new events; iteration ends with the log, or when it fell too far behind."""

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
        self._queue.put_nowait(None)

    async def next(self) -> Event | None:
        """Wait for the next event; None when there will be no more."""
        return await self._queue.get()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event


def _now() -> datetime:
    return datetime.now(UTC)


_NONE: Final[Mapping[str, object]] = {}


class EventLog:
    """The last `size` events; one that repeats another replaces it and counts both.

    When there are more, the oldest of the routine ones go first.
    """

    def __init__(
        self, *, size: int = 500, follower_capacity: int = 1000, now: Callable[[], datetime] = _now
    ) -> None:
        self._events: dict[int, Event] = {}  # by id, the oldest first
        self._size = size
        self._followers: set[Follower] = set()
        self._follower_capacity = follower_capacity
        self._now = now
        self._next_id = 1
        self._closed = False
        self.indices: Mapping[str, int] = {}  # of GPUs, by UUID, for lines of the log

    @property
    def events(self) -> tuple[Event, ...]:
        """The events still kept, oldest first."""
        return tuple(self._events.values())

    def of_last(self, seconds: float) -> tuple[Event, ...]:
        begin = time_json(self._now() - timedelta(seconds=seconds))
        return tuple(event for event in self._events.values() if event.time >= begin)

    def add(
        self,
        kind: EventType,
        message: str,
        *,
        gpu: str = "",
        device: str = "",
        claim: str = "",
        reason: str = "",
        remedy: str = "",
        before: str = "",
        after: str = "",
        facts: Mapping[str, object] = _NONE,
    ) -> Event:
        """Log what happened, keep it, and hand it to everyone who follows.

        The event's message has the remedy, too; the other arguments are fields of `Event`.
        """
        index = {"index": self.indices[gpu]} if gpu in self.indices else {}
        named = {"gpu": gpu, "device": device, "claim": claim, "reason": reason, "remedy": remedy}
        write = log.warning if kind.is_warning else log.info
        write(
            message,
            event_type=kind.value,
            **{k: v for k, v in named.items() if v},
            **index,
            **facts,
        )
        event = Event(
            id=self._next_id,
            time=time_json(self._now()),
            type=kind,
            severity="warning" if kind.is_warning else "info",
            routine=kind.is_routine,
            message=f"{message} ({remedy})" if remedy else message,
            gpu=gpu,
            before=before,
            after=after,
            device=device,
            claim=claim,
            reason=reason,
            facts=dict(facts) or None,
        )
        self._next_id += 1
        event = self._keep(event)
        for follower in self._followers:
            follower.deliver(event)
        return event

    def _keep(self, event: Event) -> Event:
        """Keep the event instead of an earlier one that it repeats; return it with its count."""
        newest_first = reversed(self._events.values())
        earlier = next((kept for kept in newest_first if _subject(kept) == _subject(event)), None)
        if earlier is not None and _content(event) == _content(earlier):
            del self._events[earlier.id]
            since, first = earlier.since or earlier.time, earlier.first or earlier.id
            event = replace(event, count=earlier.count + 1, since=since, first=first)
        self._events[event.id] = event
        if len(self._events) > self._size:
            routine = (number for number, kept in self._events.items() if kept.routine)
            del self._events[next(routine, next(iter(self._events)))]
        return event

    @contextmanager
    def following(
        self, *, after: int | None = None, within: float | None = None
    ) -> Iterator[Follower]:
        """Follow new events; first those kept whose id is greater than `after`, or else those of
        the last `within` seconds.

        An `after` from an earlier life of the agent (greater than any id given out) brings all.
        """
        known = after if after is not None and after < self._next_id else 0
        backlog = [] if after is None else [e for e in self.events if e.id > known]
        if after is None and within is not None:
            backlog = [*self.of_last(within)]
        follower = Follower(backlog, self._follower_capacity)
        self._followers.add(follower)
        if self._closed:
            follower.end()
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """End all followers; later ones end as soon as they start."""
        self._closed = True
        for follower in self._followers:
            follower.end()
