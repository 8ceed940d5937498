"""Reports on claims to the API server: Events, and their `status.devices`.

Kubernetes keeps an Event with what it is about, so that `kubectl describe` of the claim and of its
pods both show it. The API server is asked for the pods where it was not asked just now, to prepare
the claim. One Event about the same claim for the same reason comes once a minute at most; all else
is as for Events about the Node.

Of the status only the difference is sent, by server-side apply, so that other drivers' devices of a
claim stay theirs. Where the agent may not write a claim's, that is logged once, and tried again
every hour: claims are served without it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.claims.reporting.claim_news import ClaimNews
from nodeagent.claims.reporting.claim_pods import RECENT
from nodeagent.claims.reporting.device_status import DeviceStatus, ShownClaim, entries, read_shown
from nodeagent.claims.reporting.reserved_for import ReservedFor, read_reserved_for
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.events import (
    EventIntervals,
    EventPublisher,
    NodeEvent,
    ObjectReference,
)
from nodeagent.cluster.client.node_view import time_text
from nodeagent.rate_limit import RateLimit

log = structlog.get_logger(__name__)

# Pods come and go in dozens: each has two Events when it begins and two when it ends.
INTERVALS: Final = EventIntervals(interval=0.5, burst=100, known=512, waiting=512)
_SAME: Final = 60.0  # seconds
_MOST_WAITING: Final = 256
_MOST_PODS: Final = 16  # of one claim
_DENIED_AGAIN: Final = 3600.0  # seconds; rights may be mended

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
        self._waiting: asyncio.Queue[ClaimNews] = asyncio.Queue(_MOST_WAITING)

    def publish(self, news: ClaimNews) -> None:
        """Queue this, unless the like of it was published just now."""
        if self._limit.due((news.uid, news.reason), self._clock()):
            if self._waiting.full():
                self._waiting.get_nowait()
            self._waiting.put_nowait(news)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="publish Events about claims")
            group.create_task(self._address(), name="find pods of claims")

    async def _address(self) -> NoReturn:
        while True:
            news = await self._waiting.get()
            kind: Literal["Normal", "Warning"] = "Warning" if news.is_warning else "Normal"
            for about in await self._concerned(news):
                self._events.publish(NodeEvent(kind, news.reason, news.message, about))

    async def _concerned(self, news: ClaimNews) -> list[ObjectReference]:
        """The claim and its pods, or the claim alone where the API server does not say."""
        group = "resource.k8s.io/v1"
        claim = ObjectReference(group, "ResourceClaim", news.namespace, news.name, news.uid)
        known = self._recent((news.namespace, news.name))
        if known is None:
            try:
                found = await self._access.find(
                    requests.get_claim(news.namespace, news.name), read_object
                )
            except faults.ClusterFault:
                return [claim]
            known = await asyncio.to_thread(read_reserved_for, found)
        pods = known.pods[:_MOST_PODS] if known and known.uid == news.uid else ()
        return [
            claim,
            *(ObjectReference("v1", "Pod", news.namespace, name, uid) for name, uid in pods),
        ]


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """What one claim's status should have."""

    namespace: str
    name: str
    uid: str
    devices: tuple[DeviceStatus, ...]


class ClaimStatusPublisher:
    """Publishes while `run` runs; `publish` sets what. `retry` are the seconds of the first and the
    longest pause after a failure, `wall` is the time of day in UTC.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        retry: tuple[float, float] = (0.5, 30.0),
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._backoff = Backoff(*retry, spread=1.0, jitter=jitter)
        self._wall = wall
        self._wanted: Mapping[str, ClaimStatus] = {}
        self._written: dict[str, ClaimStatus] = {}
        self._denied: dict[str, float] = {}  # by uid, until when in the loop's time
        self._failed: dict[str, None] = {}  # uids, that which failed last at the end
        self._read: dict[str, tuple[float, ShownClaim]] = {}  # by uid, when and what
        self._changed = asyncio.Event()
        self._is_denied = False

    def was_read(self, claim: ShownClaim) -> None:
        """What the API server has at this moment: it is not asked again before the first write."""
        now = asyncio.get_running_loop().time()
        self._read = {uid: one for uid, one in self._read.items() if one[0] > now - RECENT}
        self._read[claim.uid] = now, claim

    def publish(self, claims: Iterable[ClaimStatus]) -> None:
        """These are the claims now; of others nothing is written any more."""
        before, self._wanted = self._wanted, {one.uid: one for one in claims}
        self._written = {u: one for u, one in self._written.items() if u in self._wanted}
        self._denied = {u: until for u, until in self._denied.items() if u in self._wanted}
        self._failed = {u: None for u in self._failed if u in self._wanted}
        if self._wanted != before:  # what was written may be about to be overwritten
            self._changed.set()

    async def run(self) -> NoReturn:
        while True:
            self._changed.clear()
            try:
                again = await self._write_all()
            except faults.ClusterFault as fault:  # of the server, so changes wait as well
                await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again):
                    await self._changed.wait()

    async def _write_all(self) -> float | None:
        """When the first of what was denied is tried again, in the loop's time; None: nothing was.

        Raises ClusterFault for what may concern all claims.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        # Where writing failed it comes last: that claim may be the only one that it fails for.
        failed = [uid for uid in self._failed if uid in self._wanted]
        for uid in (*(u for u in self._wanted if u not in self._failed), *failed):
            wanted = self._wanted.get(uid)
            if wanted is None:  # released meanwhile
                continue
            if self._written.get(uid) == wanted or self._denied.get(uid, begun) > begun:
                continue
            try:
                await self._write(wanted)
            except faults.NotAllowed as fault:  # maybe of this claim alone
                if not self._is_denied:
                    log.warning("status.devices of claims is not written", error=fault.message)
                self._is_denied = True
                self._denied[uid] = clock() + _DENIED_AGAIN
                continue
            except faults.RequestRefused as fault:
                log.warning("a claim's status is not written", error=fault.message)
            except faults.ClusterFault as fault:
                if not (isinstance(fault, faults.ObjectMissing) and fault.is_named):
                    self._failed.pop(uid, None)
                    self._failed[uid] = None
                    raise
                log.debug("the claim is gone", claim=f"{wanted.namespace}/{wanted.name}")
            self._backoff.reset()
            self._failed.pop(uid, None)
            self._written[uid] = wanted
        # An older time is of one that was denied, and is wanted as it was before.
        again = min((until for until in self._denied.values() if until > begun), default=None)
        self._is_denied = again is not None
        return again

    async def _write(self, wanted: ClaimStatus) -> None:
        namespace, name = wanted.namespace, wanted.name
        read_at, shown = self._read.pop(wanted.uid, (-math.inf, None))
        is_old = asyncio.get_running_loop().time() > read_at + RECENT
        if is_old or wanted.uid in self._written:  # it may have been read before that was
            shown = await self._shown(wanted)
        if shown is None:
            return
        there = {key: status for key, (status, _) in shown.devices.items()}
        if there == {one.key: one for one in wanted.devices}:
            return
        devices = entries(wanted.devices, shown.devices, time_text(self._wall()))
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": wanted.uid},
            "status": {"devices": devices},
        }
        try:
            await self._access.send(requests.apply_claim_devices(namespace, name, body))
        except faults.RequestRefused:  # as of devices that it was allocated a moment ago
            if await self._shown(wanted) is not None:
                raise

    async def _shown(self, wanted: ClaimStatus) -> ShownClaim | None:
        """What the claim shows now; None where it is gone, or has not these devices any more."""
        found = await self._access.find(
            requests.get_claim(wanted.namespace, wanted.name), read_object
        )
        shown = await asyncio.to_thread(read_shown, found)
        if shown is None or shown.uid != wanted.uid:
            return None
        return shown if shown.allocated.issuperset(one.key for one in wanted.devices) else None
