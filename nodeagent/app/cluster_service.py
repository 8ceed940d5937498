"""The agent's cluster: the parts that stand for it, made and run.

Imported by a node without a cluster too, so what is heavy is imported where it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from nodeagent.cluster.plan_sources.registry import make_source
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.loop_control import LoopControl, NodeStates
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate
from nodeagent.settings import PlanSettings, Settings
from nodeagent.views.node_state import ClusterState, NodeState

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.device_users import FinishedAmong
    from nodeagent.cluster.plan_sources.node_source import NodeSource

log = structlog.get_logger(__name__)

_LAST_WORDS = 1.5  # seconds for the newest state to be written at the end
_LEAVING = 2.0  # seconds for putting back at the end what was done around a change


class ClusterService:
    """The Node followed and written, and the cluster around a change, while `run` runs.

    `source` is the plan source in force.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        events: EventLog,
        *,
        control: LoopControl,
        states: NodeStates,
        source: str,
    ) -> None:
        from nodeagent.cluster.client.access import ClusterAccess
        from nodeagent.cluster.client.credentials import credentials_of
        from nodeagent.cluster.drain.hooks import ClusterHooks
        from nodeagent.cluster.publisher import NodePublisher

        self._settings = settings
        self._offer = control.offer
        self._events = events
        self._states = states
        self._follows_node = False
        cluster = settings.kubernetes
        self._access = ClusterAccess(credentials_of(cluster.kubeconfig, cluster.context))
        self._hooks = ClusterHooks(
            self._access,
            settings.node_name,
            settings=cluster,
            source=source,
            policy=policy,
            wake=control.nudge,
            restored=self._write_again,
            report=self._report,
        )
        self._publisher = NodePublisher(
            self._access,
            settings.node_name,
            self._hooks,
            events=events,
            unreachable=self._unreachable,
            labels=cluster.layout_labels,
        )

    @property
    def hooks(self) -> ChangeHooks:
        """What the reconciler asks around a change."""
        return self._hooks

    @property
    def finished_pods(self) -> FinishedAmong:
        """Finds the pods that have ended among those that the kubelet lists."""
        return self._hooks.finished_pods.among

    @property
    def state(self) -> ClusterState:
        """How the agent stands with the cluster."""
        return self._publisher.state

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the Node as the agent writes it."""
        return self._publisher.problems

    def publish(self, state: NodeState, offered: PlanUpdate | None) -> None:
        """The node is like this now; `offered` is what it was made from."""
        self._publisher.publish(state, offered)

    def use(self, name: str, source: NodeSource | None) -> None:
        """Take the plan from this source on the Node; None for one that is not there."""
        self._follows_node = source is not None
        self._hooks.use_source(name)
        self._publisher.use(source)

    def source(
        self, name: str, plan: PlanSettings, *, look_every: float, alive: Callable[[], None]
    ) -> NodeSource:
        """The source of this name, to be run and used; see `make_source`."""
        return make_source(
            name,
            plan,
            self._settings.kubernetes,
            access=self._access,
            offer=self._offer,
            rounds=self._rounds,
            look_every=look_every,
            alive=alive,
        )

    async def flush(self) -> None:
        """The agent stops: have the newest state written while `run` still runs."""
        await self._publisher.flush(within=_LAST_WORDS)

    async def run(self) -> None:
        """Follow and write the Node, and do what follows up, until cancelled."""
        async with self._access:
            try:
                async with asyncio.TaskGroup() as parts:
                    parts.create_task(self._publisher.run(), name="publisher")
                    parts.create_task(self._hooks.run(), name="hooks")
            finally:
                await self._hooks.shut_down(within=_LEAVING)

    def _write_again(self) -> None:
        self._publisher.refresh()

    def _rounds(self) -> int:
        return self._states.newest.rounds

    def _report(self, kind: EventType, message: str) -> None:
        self._events.add(kind, message)
        log.warning(message, event_type=kind.value)

    def _unreachable(self, why: str) -> None:
        """Without a word from the Node the plan of an earlier life counts."""
        if self._follows_node:
            self._offer(NoPlan(why))
