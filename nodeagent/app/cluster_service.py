"""The agent's cluster: the parts that stand for it, made and run.

Imported by a node without a cluster too, so what is heavy is imported where it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nodeagent.app.shared import Shared, source_of
from nodeagent.cluster.plan_sources.registry import make_source

if TYPE_CHECKING:
    from nodeagent.cluster.plan_sources.node_source import FollowFile, NodeSource, Offer

_LEAVING = 2.0  # seconds for putting back at the end what was done around a change


class ClusterService:
    """The Node followed and written (`publisher`), the cluster around a change (`hooks`), and what
    limits the agent's account there (`guard`), while `run` runs.

    Raises UsageError for wrong settings.
    """

    def __init__(self, shared: Shared) -> None:
        from nodeagent.cluster.client.access import ClusterAccess
        from nodeagent.cluster.client.credentials import credentials_of
        from nodeagent.cluster.drain.hooks import ClusterHooks
        from nodeagent.cluster.guard import NodeGuard
        from nodeagent.cluster.publisher import NodePublisher

        settings, events = shared.settings, shared.events
        self._settings = settings.kubernetes
        self._node_name = settings.node_name
        self._states = shared.states
        self._source = source_of(settings.plan, in_cluster=True)
        cluster, node = self._settings, settings.node_name
        self.access = ClusterAccess(credentials_of(cluster.kubeconfig, cluster.context, node))
        self.hooks = ClusterHooks(
            self.access,
            settings.node_name,
            settings=self._settings,
            source=self._source,
            policy=settings.policy,
            wake=shared.control.wake,
            report=events.add,
        )
        self.guard = NodeGuard(self.access, settings.node_name)
        shared.control.follow(self.guard.problem, "the account's limits are others")
        self.publisher = NodePublisher(
            self.access,
            settings.node_name,
            self.hooks,
            events=events,
            labels=self._settings.layout_labels,
            taints=self._settings.taints,
        )

    def follow_source(self, follow: FollowFile, offer: Offer) -> NodeSource | None:
        """Have the plan's source on the Node followed, which reports to `offer`; returned to be
        run, None where it is not there. `follow` makes the plan file, for a source that reads it.
        """
        if self._source != "file":
            self.publisher.source = make_source(
                self._source, offer=offer, rounds=lambda: self._states.newest.rounds, follow=follow
            )
        return self.publisher.source

    async def workloads(self) -> Mapping[tuple[str, str], str]:
        """The workloads' names of the node's pods, by namespace and name; raises ClusterFault."""
        from nodeagent.cluster.client import requests
        from nodeagent.cluster.drain.pods import read_pod

        listed = await self.access.listed(requests.list_pods(self._node_name), read_pod)
        return {(pod.namespace, pod.name): pod.workload for pod in listed.items}

    async def run(self) -> None:
        async with self.access:
            try:
                async with asyncio.TaskGroup() as parts:
                    parts.create_task(self.publisher.run(), name="publisher")
                    parts.create_task(self.hooks.run(), name="hooks")
                    parts.create_task(self.guard.run(), name="guard")
            finally:
                await self.hooks.shut_down(within=_LEAVING)
