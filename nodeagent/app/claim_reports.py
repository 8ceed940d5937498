"""What is reported of this node's claims: events, also at the API server, and their status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nodeagent.claims.model import ClaimRecord, Phase
from nodeagent.claims.reporting.attempts import Attempt
from nodeagent.claims.reporting.claim_news import ClaimHistory
from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.claims.reporting.device_status import device_statuses
from nodeagent.cluster.claim_events import ClaimEventPublisher, Recent
from nodeagent.cluster.claim_status import ClaimStatus, ClaimStatusPublisher
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.reconcile.event_log import EventLog, EventType


class ClaimReports:
    """Reports for the agent of the Node `node` while `run` runs. `recent`: whose a claim is, where
    the API server has just said so.
    """

    def __init__(
        self, access: ClusterAccess, node: str, recent: Recent, event_log: EventLog
    ) -> None:
        self._event_log = event_log
        self._history = ClaimHistory()
        self._events = ClaimEventPublisher(access, node, recent=recent)
        self._status = ClaimStatusPublisher(access)

    def observe(
        self,
        records: tuple[ClaimRecord, ...],
        attempts: Mapping[str, Attempt],
        health: tuple[DeviceHealth, ...],
    ) -> None:
        for news in self._history.news(records, attempts, health):
            self._events.publish(news)
            claim = f"{news.namespace}/{news.name}"
            message = news.message if claim in news.message else f"claim {claim}: {news.message}"
            self._event_log.add(
                EventType(news.reason), message, claim=claim, gpu=news.gpu, facts={"uid": news.uid}
            )
        known = {(one.pool, one.device): one for one in health}
        self._status.publish(
            ClaimStatus(one.namespace, one.name, one.uid, device_statuses(one, known))
            for one in records
            if one.phase in {Phase.READY, Phase.RELEASING}
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="Events about claims")
            group.create_task(self._status.run(), name="status of claims")
