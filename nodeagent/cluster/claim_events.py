"""Publishes Events about claims, and about the pods that have them.

Kubernetes keeps an Event with what it is about, so that `kubectl describe` of the claim and of its
pods both show it. The API server is asked for the pods where it was not asked just now, to prepare
the claim. One Event about the same claim for the same reason comes once a minute at most; all else
is as for Events about the Node.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NoReturn

from nodeagent.claims.reporting.claim_news import ClaimNews
from nodeagent.claims.reporting.reserved_for import ReservedFor, read_reserved_for
from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.events import (
    EventIntervals,
    EventPublisher,
    NodeEvent,
    ObjectReference,
)
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.rate_limit import RateLimit

# Pods come and go in dozens: each has two Events when it begins and two when it ends.
INTERVALS: Final = EventIntervals(interval=0.5, burst=100, known=512, waiting=512)
_SAME: Final = 60.0  # seconds
_MOST_WAITING: Final = 256
_MOST_PODS: Final = 16  # of one claim


Recent = Callable[[tuple[str, str]], ReservedFor | None]
"""What the API server had of the claim of this namespace and name a moment ago, if anything."""


class ClaimEventPublisher:
    """Publishes for the agent of the Node `node` while `run` runs; at best effort."""

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        *,
        recent: Recent = lambda _: None,
        intervals: EventIntervals = INTERVALS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._recent = recent
        self._events = EventPublisher(access, node, intervals=intervals)
        self._clock = clock
        self._limit = RateLimit(_SAME, most_keys=1024)
        self._waiting: deque[ClaimNews] = deque(maxlen=_MOST_WAITING)
        self._queued = asyncio.Event()

    def publish(self, news: ClaimNews) -> None:
        """Queue this, unless the like of it was published just now."""
        if self._limit.due((news.uid, news.reason), self._clock()):
            self._waiting.append(news)
            self._queued.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="publish Events about claims")
            group.create_task(self._address(), name="find pods of claims")

    async def _address(self) -> NoReturn:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._waiting:
                news = self._waiting.popleft()
                for about in await self._concerned(news):
                    kind: Literal["Normal", "Warning"] = "Warning" if news.is_warning else "Normal"
                    self._events.publish(NodeEvent(kind, news.reason, news.message, about))

    async def _concerned(self, news: ClaimNews) -> list[ObjectReference]:
        """The claim and its pods, or the claim alone where the API server does not say."""
        group = "resource.k8s.io/v1"
        claim = ObjectReference(group, "ResourceClaim", news.namespace, news.name, news.uid)
        known = self._recent((news.namespace, news.name))
        if known is None:
            try:
                found = await self._access.find(requests.get_claim(news.namespace, news.name))
            except ClusterFault:
                return [claim]
            known = await asyncio.to_thread(read_reserved_for, found)
        pods = known.pods[:_MOST_PODS] if known and known.uid == news.uid else ()
        return [
            claim,
            *(ObjectReference("v1", "Pod", news.namespace, name, uid) for name, uid in pods),
        ]
