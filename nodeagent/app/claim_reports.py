"""What the API server gets to know of this node's claims: Events, and their status."""

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


class ClaimReports:
    """Reports for the agent of the Node `node` while `run` runs. `recent`: whose a claim is, where
    the API server has just said so.
    """

    def __init__(self, access: ClusterAccess, node: str, recent: Recent) -> None:
        self._history = ClaimHistory()
        self._events = ClaimEventPublisher(access, node, recent=recent)
        self._status = ClaimStatusPublisher(access)

    def observe(
        self,
        records: tuple[ClaimRecord, ...],
        attempts: Mapping[str, Attempt],
        health: tuple[DeviceHealth, ...],
    ) -> None:
        """The claims are like this now; `attempts` by uid."""
        for news in self._history.news(records, attempts, health):
            self._events.publish(news)
        self._status.publish(
            ClaimStatus(one.namespace, one.name, one.uid, device_statuses(one, health))
            for one in records
            if one.phase in {Phase.READY, Phase.RELEASING}
        )

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(), name="Events about claims")
            group.create_task(self._status.run(), name="status of claims")
