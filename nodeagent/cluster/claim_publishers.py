"""Reports on claims to the API server: Events, and their `status.devices`.

Kubernetes keeps an Event with what it is about, so that `kubectl describe` of the claim and of its
pods both show it. The API server is asked for the pods where it was not asked just now, to prepare
the claim, and about a pod that has come since. One Event about the same claim for the same reason,
and of a mismatch with the same words, comes once a minute at most; all else is as for Events about
the Node.

Of the status only the difference is sent, by server-side apply, so that other drivers' devices of a
claim stay theirs. Where the agent may not write a claim's, that is logged once, and tried again
every hour: claims are served without it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal, NoReturn

import structlog
from msgspec import to_builtins

from nodeagent.claims.reporting.claim_news import MISMATCH, ClaimNews
from nodeagent.claims.reporting.device_reports import dated, shown_statuses
from nodeagent.claims.serving.claim_object import ClaimObject, ShownDevice, read_claim
from nodeagent.cluster import events
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import time_text
from nodeagent.cluster.keeper import Keeper, WriteIntervals
from nodeagent.pacing import RateLimit
from nodeagent.structs import Struct

log = structlog.get_logger(__name__)

# Pods come and go in dozens: each has two Events when it begins and two when it ends.
INTERVALS: Final = events.EventIntervals(interval=0.5, burst=100, known=512, waiting=512)
_SAME: Final = 60.0  # seconds
_MAX_WAITING: Final = 256
_MAX_PODS: Final = 16  # of one claim
_DENIED: Final = (3600.0, 3600.0)  # seconds; rights may be mended

Recent = Callable[[tuple[str, str]], ClaimObject | None]
"""What the API server had of the claim of this namespace and name a moment ago, if anything: it is
not asked again.
"""


class ClaimEventPublisher:
    """Publishes for the agent of the Node `node` while `run` runs; at best effort."""

    def __init__(
        self,
        access: ClusterAccess,
        node: str,
        *,
        recent: Recent = lambda _: None,
        intervals: events.EventIntervals = INTERVALS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._recent = recent
        self._events = events.EventPublisher(access, node, intervals=intervals)
        self._clock = clock
        self._limit = RateLimit(_SAME, most_keys=1024)
        self._waiting: asyncio.Queue[ClaimNews] = asyncio.Queue(_MAX_WAITING)

    def publish(self, news: ClaimNews) -> None:
        """Queue this, unless the like of it was published just now."""
        which = news.message if news.reason == MISMATCH else ""
        if self._limit.due((news.uid, news.reason, which), self._clock()):
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
                self._events.publish(events.NodeEvent(kind, news.reason, news.message, about))

    async def _concerned(self, news: ClaimNews) -> list[events.ObjectReference]:
        """The claim and its pods, or the claim alone where the API server does not say."""
        group = "resource.k8s.io/v1"
        claim = events.ObjectReference(group, "ResourceClaim", news.namespace, news.name, news.uid)
        known = self._recent((news.namespace, news.name)) if news.reason != MISMATCH else None
        if known is None:
            request = requests.get_claim(news.namespace, news.name)
            try:
                known = await self._access.find(request, read_claim)
            except faults.ClusterFault:
                return [claim]
        pods = known.pods[:_MAX_PODS] if known and known.uid == news.uid else ()
        return [
            claim,
            *(events.ObjectReference("v1", "Pod", news.namespace, name, uid) for name, uid in pods),
        ]


class ClaimStatus(Struct, frozen=True):
    """What one claim's status should have."""

    namespace: str
    name: str
    uid: str
    devices: tuple[ShownDevice, ...]


class ClaimStatusPublisher:
    """Publishes while `run` runs; `publish` sets what. `retry` are the seconds of the first and the
    longest pause after a failure, `wall` is the time of day in UTC. A claim is a key of the keeper,
    by its uid.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        recent: Recent = lambda _: None,
        retry: tuple[float, float] = (0.5, 30.0),
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._recent = recent
        self._wall = wall
        self._written: dict[str, ClaimStatus | None] = {}  # None: perhaps, or in part
        intervals = WriteIntervals(interval=0.0, retry=retry, denied=_DENIED)
        self._keeper = Keeper[str, ClaimStatus](self, intervals, on_fault=_log_denial)

    def publish(self, claims: Iterable[ClaimStatus]) -> None:
        """These are the claims now; of others nothing is written any more."""
        wanted = {one.uid: one for one in claims}
        for uid in self._keeper.keys - wanted.keys():
            self._keeper.forget(uid)
            self._written.pop(uid, None)
        for uid, one in wanted.items():
            self._keeper.want(uid, one)

    async def run(self) -> NoReturn:
        await self._keeper.run()

    # --- as the keeper's adapter ------------------------------------------------------------------

    def difference(self, uid: str, wanted: ClaimStatus) -> ClaimStatus | None:
        return wanted if self._written.get(uid) != wanted else None

    async def send(self, uid: str, wanted: ClaimStatus) -> None:
        # Noted before: a request whose answer is lost may have been carried out.
        was_sent, self._written[uid] = uid in self._written, None
        shown = self._recent((wanted.namespace, wanted.name))
        try:
            if was_sent or shown is None or shown.uid != uid:  # it may be older than that write
                shown = await self._shown(wanted)
            if shown is not None:
                await self._write(wanted, shown)
        except faults.ObjectMissing as fault:
            if not fault.is_named:  # a proxy's: it says nothing of this claim
                raise faults.ClusterUnreachable(fault.message, remedy=fault.remedy) from fault
            log.debug("the claim is gone", claim=f"{wanted.namespace}/{wanted.name}")
        self._written[uid] = wanted
        if uid not in self._keeper.keys:  # it was released meanwhile
            del self._written[uid]

    async def read_again(self) -> None:
        """Read nothing, since each write reads its claim."""

    async def _write(self, wanted: ClaimStatus, shown: ClaimObject) -> None:
        namespace, name = wanted.namespace, wanted.name
        there = {one.key: one for one in shown_statuses(shown)}
        devices = dated(wanted.devices, there, time_text(self._wall()))
        if there == {one.key: one for one in devices}:
            return
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": wanted.uid},
            "status": {"devices": to_builtins(devices)},
        }
        try:
            await self._access.send(requests.apply_claim_devices(namespace, name, body))
        except faults.RequestRefused as fault:  # as of devices that it was allocated a moment ago
            if await self._shown(wanted) is not None:
                log.warning("a claim's status is not written", error=fault.message)

    async def _shown(self, wanted: ClaimStatus) -> ClaimObject | None:
        """What the claim shows now; None where it is gone, or has not these devices any more."""
        request = requests.get_claim(wanted.namespace, wanted.name)
        shown = await self._access.find(request, read_claim)
        if shown is None or shown.uid != wanted.uid or shown.allocated is None:
            return None
        allocated = {one.key for one in shown.allocated.results if one.is_own}
        return shown if allocated.issuperset(one.key for one in wanted.devices) else None


def _log_denial(fault: faults.ClusterFault | None) -> None:
    """What else fails concerns the whole server, and its other followers report it."""
    if isinstance(fault, faults.NotAllowed):  # maybe of one claim alone
        log.warning("status.devices of claims is not written", error=fault.message)
