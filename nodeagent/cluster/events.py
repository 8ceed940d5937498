"""Publishes Kubernetes Events about the Node and what it serves: one for each cause, with a count
of its repeats.

At best effort: Events are for people who look, nothing waits for them, and the oldest are dropped
where too many wait. Memory and requests are bounded.
"""

import platform
import random
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal, NoReturn

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import time_text
from nodeagent.cluster.client.requests import JsonObject
from nodeagent.cluster.keeper import Keeper, WriteIntervals
from nodeagent.structs import Struct
from nodeagent.views.text import shortened

_COMPONENT = "nodeagent"
_MAX_MESSAGE = 1024  # characters; the API allows no more


class ObjectReference(Struct, frozen=True):
    """What an Event is about; the Event is in its namespace."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class NodeEvent(Struct, frozen=True):
    """An Event to publish; equal ones have the same cause. `reason` is one word in CamelCase.

    It is about the Node where `about` is None.
    """

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: ObjectReference | None = None


class EventIntervals(Struct, frozen=True):
    """Times in seconds, sizes in causes."""

    interval: float = 6.0  # one request in so long, in the long run
    burst: int = 10
    known: int = 256  # causes whose repeats are counted in the Event that there is
    waiting: int = 64  # causes that wait to be published
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most


_INTERVALS: Final = EventIntervals()


class _Waiting(Struct, eq=False):
    """How often it happened since it was published last."""

    count: int
    first: datetime
    last: datetime


class _Published(Struct):
    name: str
    count: int


class EventPublisher:
    """Publishes Events of the agent of the Node `node` while `run` runs.

    `wall` gives the time of day in UTC, `jitter` numbers in [0, 1).
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        *,
        intervals: EventIntervals = _INTERVALS,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._node = node
        self._intervals = intervals
        self._wall = wall
        # Names must not meet those of the agent that ran here before.
        self._life = f"{int(jitter() * 2**32):08x}"
        self._made = 0
        self._waiting: OrderedDict[NodeEvent, _Waiting] = OrderedDict()
        self._known: OrderedDict[NodeEvent, _Published] = OrderedDict()
        writes = WriteIntervals(
            intervals.interval, intervals.burst, shared=True, retry=intervals.retry
        )
        self._keeper = Keeper[NodeEvent, _Waiting](self, writes, jitter=jitter)

    def publish(self, event: NodeEvent) -> None:
        """Queue this; a repeat of one that still waits is counted there."""
        now = self._wall()
        waiting = self._waiting.get(event)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
            return
        self._queue(event, _Waiting(1, now, now))

    async def run(self) -> NoReturn:
        await self._keeper.run()

    def _queue(self, event: NodeEvent, waiting: _Waiting) -> None:
        self._waiting[event] = waiting
        self._keeper.want(event, waiting)
        if len(self._waiting) > self._intervals.waiting:
            oldest, _ = self._waiting.popitem(last=False)
            self._keeper.forget(oldest)

    # --- as the keeper's adapter ------------------------------------------------------------------

    def difference(self, _: NodeEvent, waiting: _Waiting) -> _Waiting:
        return waiting

    async def send(self, event: NodeEvent, waiting: _Waiting) -> None:
        del self._waiting[event]  # repeats from now on are counted anew
        try:
            await self._send(event, waiting)
        except (
            faults.NotAllowed,
            faults.RequestRefused,
            faults.ObjectMissing,
            faults.WriteConflict,
        ):
            pass  # it is lost
        except faults.ClusterFault:
            meanwhile = self._waiting.pop(event, None)
            if meanwhile is not None:
                waiting.count += meanwhile.count
                waiting.last = meanwhile.last
            self._queue(event, waiting)
            raise
        if event not in self._waiting:
            self._keeper.forget(event)

    async def read_again(self) -> None:
        """Read nothing, since an Event that the server has forgotten is made anew."""

    async def _send(self, event: NodeEvent, waiting: _Waiting) -> None:
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
                known.count = count
                self._known.move_to_end(event)
                return
        self._made += 1
        name = f"{self._node}.{self._life}{self._made:08x}"
        await self._access.send(requests.create_event(self._body(name, event, waiting)))
        self._known[event] = _Published(name, waiting.count)
        if len(self._known) > self._intervals.known:
            self._known.popitem(last=False)

    def _body(self, name: str, event: NodeEvent, waiting: _Waiting) -> JsonObject:
        message = shortened(event.message, most=_MAX_MESSAGE, command="nodeagent events")
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
            "reportingInstance": platform.node(),  # of two agents for a Node it names each
            "firstTimestamp": time_text(waiting.first),
            "lastTimestamp": time_text(waiting.last),
            "count": waiting.count,
        }
