"""Publishes Kubernetes Events about the Node and what it serves: one for each cause, with a count
of its repeats.

At best effort: Events are for people who look, nothing waits for them, and what cannot be published
in time is dropped. Memory and requests are bounded.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn

from nodeagent.backoff import Backoff
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import time_text
from nodeagent.cluster.client.requests import JsonObject
from nodeagent.rate_limit import Allowance

_COMPONENT = "nodeagent"
_LONGEST_MESSAGE = 1024  # characters; the API allows no more


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an Event is about; the Event is in its namespace."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An Event to publish; equal ones have the same cause. `reason` is one word in CamelCase.

    It is about the Node where `about` is None.
    """

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: ObjectReference | None = None


@dataclass(frozen=True, slots=True)
class EventIntervals:
    """Times in seconds, sizes in causes."""

    interval: float = 6.0  # one request in so long, in the long run
    burst: int = 10
    known: int = 256  # causes whose repeats are counted in the Event that there is
    waiting: int = 64  # causes that wait to be published
    stale_after: float = 3600.0  # servers forget Events after an hour; older ones are useless
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most


@dataclass(slots=True)
class _Waiting:
    count: int
    first: datetime
    last: datetime
    queued_at: float  # by the clock


@dataclass(slots=True)
class _Published:
    name: str
    count: int
    sent_at: float  # by the clock


class EventPublisher:
    """Publishes Events of the agent of the Node `node` while `run` runs.

    `wall` gives the time of day in UTC, `jitter` numbers in [0, 1).
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        *,
        intervals: EventIntervals = EventIntervals(),
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._node = node
        self._intervals = intervals
        self._clock = clock
        self._wall = wall
        self._allowance = Allowance(interval=intervals.interval, burst=intervals.burst)
        self._backoff = Backoff(*intervals.retry, spread=1.0, jitter=jitter)
        # Names must not meet those of the agent that ran here before.
        self._life = f"{int(jitter() * 2**32):08x}"
        self._made = 0
        self._waiting: OrderedDict[NodeEvent, _Waiting] = OrderedDict()
        self._known: OrderedDict[NodeEvent, _Published] = OrderedDict()
        self._queued = asyncio.Event()
        self.dropped = 0  # causes that were never published: too many at once, too old, refused

    def publish(self, event: NodeEvent) -> None:
        """Queue this; a repeat of one that still waits is counted there."""
        now = self._wall()
        waiting = self._waiting.get(event)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
            return
        self._waiting[event] = _Waiting(1, now, now, self._clock())
        if len(self._waiting) > self._intervals.waiting:
            self._waiting.popitem(last=False)
            self.dropped += 1
        self._queued.set()

    async def run(self) -> NoReturn:
        while True:
            await self._queued.wait()
            wait = self._allowance.next_at() - self._clock()
            if wait > 0:
                await asyncio.sleep(wait)
            await self._publish_next()
            if not self._waiting:
                self._queued.clear()

    async def _publish_next(self) -> None:
        event, waiting = self._waiting.popitem(last=False)
        if self._is_stale(waiting.queued_at, self._clock()):
            self.dropped += 1
            return
        self._allowance.take(self._clock())
        try:
            await self._send(event, waiting)
        except (
            faults.NotAllowed,
            faults.RequestRefused,
            faults.ObjectMissing,
            faults.WriteConflict,
        ):
            self.dropped += 1
        except faults.ClusterFault as fault:
            self._put_back(event, waiting)
            await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))
        else:
            self._backoff.reset()

    async def _send(self, event: NodeEvent, waiting: _Waiting) -> None:
        now = self._clock()
        while self._known and self._is_stale(next(iter(self._known.values())).sent_at, now):
            self._known.popitem(last=False)  # the server has forgotten it
        known = self._known.get(event)
        if known is not None:
            count = known.count + waiting.count
            body: JsonObject = {"count": count, "lastTimestamp": time_text(waiting.last)}
            try:
                namespace = event.about.namespace if event.about else requests.EVENTS_IN
                await self._access.send(requests.patch_event(known.name, body, namespace))
            except faults.ObjectMissing:
                del self._known[event]  # the server has forgotten it: it is news again
            else:
                known.count, known.sent_at = count, now
                self._known.move_to_end(event)
                return
        self._made += 1
        name = f"{self._node}.{self._life}{self._made:08x}"
        await self._access.send(requests.create_event(self._body(name, event, waiting)))
        self._known[event] = _Published(name, waiting.count, now)
        if len(self._known) > self._intervals.known:
            self._known.popitem(last=False)

    def _is_stale(self, moment: float, now: float) -> bool:
        return now - moment > self._intervals.stale_after

    def _put_back(self, event: NodeEvent, waiting: _Waiting) -> None:
        """Behind the others, as only this one may fail; together with its repeats meanwhile."""
        meanwhile = self._waiting.pop(event, None)
        if meanwhile is not None:
            waiting.count += meanwhile.count
            waiting.last = meanwhile.last
        if len(self._waiting) >= self._intervals.waiting:
            self.dropped += 1
            return
        self._waiting[event] = waiting

    def _body(self, name: str, event: NodeEvent, waiting: _Waiting) -> JsonObject:
        message = event.message
        if len(message) > _LONGEST_MESSAGE:
            message = message[: _LONGEST_MESSAGE - 1] + "…"
        # As the kubelet writes it: `kubectl describe node` looks for the name as the uid too.
        about = event.about or ObjectReference("v1", "Node", "", self._node, self._node)
        reference = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name}
        if about.namespace:
            reference["namespace"] = about.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace or requests.EVENTS_IN},
            "involvedObject": {**reference, "uid": about.uid},
            "type": event.kind,
            "reason": event.reason,
            "message": message,
            "source": {"component": _COMPONENT, "host": self._node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": time_text(waiting.first),
            "lastTimestamp": time_text(waiting.last),
            "count": waiting.count,
        }
