"""What is known of this node's claims, for people and metrics (attempts, pods, their problems), and
what is reported of them: events, also at the API server, and their status.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from nodeagent.claims.model import Allocated, ClaimRecord, RecordPhase
from nodeagent.claims.reporting.claim_news import ClaimHistory
from nodeagent.claims.reporting.device_reports import DeviceHealth, device_statuses
from nodeagent.claims.reporting.overview import ClaimFacts, served_claims
from nodeagent.claims.serving.attempts import Attempt, Attempts
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.cluster import claim_publishers
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.errors import NodeagentError
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.signals import Signal
from nodeagent.views.claims import Claim

_LISTED_WITHIN = 1.0  # seconds after its call's end, in which the kubelet lists a pod's devices

Allocations = Callable[[], Awaitable[tuple[Allocated, ...]]]


class ClaimView:
    """Claims as users see them. `observe` and `health` give the node and its claimed devices as
    they are now; `pods_changed` publishes that the kubelet lists other pods.
    """

    def __init__(
        self,
        claims: NodeClaims,
        *,
        observe: Callable[[], ObservedNode],
        health: Callable[[], tuple[DeviceHealth, ...]],
    ) -> None:
        self._claims = claims
        self._observe = observe
        self._health = health
        self.pods_changed: Signal[None] = Signal(None)
        self._called = asyncio.Event()
        self.pods = claims.pods
        self.attempts = Attempts(clock=asyncio.get_running_loop().time, wall=time.time)
        self.attempts.ended.subscribe(lambda _: self._called.set())
        self.upkeep_problems: Mapping[str, Problem] = {}  # by the claim's uid, as upkeep left it
        self.pod_problems: Mapping[str, tuple[Problem, ...]] = {}  # by the claim's uid
        self._served: tuple[object, tuple[Claim, ...]] = (None, ())  # of what, and which

    @property
    def served(self) -> tuple[Claim, ...]:
        """The claims of this node, as they are now: the same tuple while nothing has changed."""
        records = self._claims.store.records
        facts = ClaimFacts(
            self._observe(),
            self._claims.places.boot_id,
            self.pods,
            records,
            self._claims.store.unreadable,
            dict(self.attempts.newest({record.uid for record in records})),  # it changes
            self.upkeep_problems,
            {(one.pool, one.device): one for one in self._health()},
            self.pod_problems,
        )
        # Two records may differ in their times alone, which do not count when they are compared.
        of = facts, self.pods.version, [record.since for record in records]
        before, claims = self._served
        self._served = of, claims if of == before else served_claims(facts)
        return self._served[1]

    def recording(self, allocations: Allocations) -> Allocations:

        async def noted() -> tuple[Allocated, ...]:
            found = await allocations()
            records = {(one.namespace, one.name) for one in self._claims.store.records}
            if self.pods.observe(found, records | self.attempts.keys):
                self.pods_changed.publish(None)
            return found

        return noted

    async def follow_pods(self, allocations: Allocations) -> NoReturn:
        """Ask soon after each call of the kubelet: by then it names the containers of pods."""
        while True:
            await self._called.wait()
            self._called.clear()
            await asyncio.sleep(_LISTED_WITHIN)
            with suppress(NodeagentError):  # the next round of upkeep reports it
                await allocations()


class ClaimReports:
    """Reports for the agent of the Node `node` while `run` runs. `recent`: a claim as the API
    server has it, where that was asked just now.
    """

    def __init__(
        self, access: ClusterAccess, node: str, recent: claim_publishers.Recent, event_log: EventLog
    ) -> None:
        self._event_log = event_log
        self._history = ClaimHistory()
        self._events = claim_publishers.ClaimEventPublisher(access, node, recent=recent)
        self._status = claim_publishers.ClaimStatusPublisher(access, recent=recent)
        self._shown: set[str] = set()  # uids of claims that were ready

    def observe(
        self,
        records: tuple[ClaimRecord, ...],
        attempts: Mapping[str, Attempt],
        health: tuple[DeviceHealth, ...],
        pod_problems: Mapping[str, tuple[Problem, ...]],
    ) -> None:
        for news in self._history.news(records, attempts, health, pod_problems):
            self._events.publish(news)
            claim = f"{news.namespace}/{news.name}"
            message = news.message if claim in news.message else f"claim {claim}: {news.message}"
            self._event_log.add(
                EventType(news.reason), message, claim=claim, gpu=news.gpu, facts={"uid": news.uid}
            )
        known = {(one.pool, one.device): one for one in health}
        ready = {RecordPhase.READY, RecordPhase.RELEASING}
        shown = [one for one in records if one.phase in ready or one.uid in self._shown]
        self._shown = {one.uid for one in shown}
        self._status.publish(
            claim_publishers.ClaimStatus(
                one.namespace, one.name, one.uid, device_statuses(one, known)
            )
            for one in shown
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="Events about claims")
            group.create_task(self._status.run(), name="status of claims")
