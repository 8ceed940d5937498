"""What the agent answers over HTTP: its parts asked, their values made into JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodeagent.app.cluster_service import ClusterPart
from nodeagent.app.health_service import HealthPart
from nodeagent.app.metrics_service import MetricsPart
from nodeagent.app.mps_service import MpsPart
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.preview import Preview, preview
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.views.mps_report import done_json, mps_answer
from nodeagent.views.mps_state import DaemonState
from nodeagent.views.node_state import NodeState, not_ready
from nodeagent.views.plan_report import plan_json
from nodeagent.views.status_report import status_json

if TYPE_CHECKING:
    from nodeagent.api.answers import Answers

Json = dict[str, Any]

_FRESH = 5.0  # seconds after which a picture is renewed when somebody asks for it


class Answering:
    """The answers of one agent."""

    def __init__(
        self,
        reconciler: Reconciler,
        mps: MpsPart,
        *,
        health: HealthPart,
        metrics: MetricsPart,
        cluster: ClusterPart | None,
        policy: Policy,
    ) -> None:
        self._reconciler = reconciler
        self._mps = mps
        self._health = health
        self._metrics = metrics
        self._cluster = cluster
        self._policy = policy

    def answers(self, events: EventLog, *, not_alive: Callable[[], tuple[str, ...]]) -> Answers:
        """As the API takes them, which is imported here because that takes long."""
        from nodeagent.api.answers import Answers, Rendered, RenderedStatus

        rendered = RenderedStatus(
            self._state,
            lambda state, gpu: status_json(state, gpu=gpu),
            asyncio.get_running_loop().time,
        )

        def status(gpu: str | None) -> Rendered | None:
            self._reconciler.look_if_older_than(_FRESH)
            return rendered.page(gpu)

        return Answers(
            status=status,
            plan=self._plan,
            preview=self._preview,
            not_alive=not_alive,
            not_ready=lambda: not_ready(self._state()),
            events=events,
            mps=self._mps_report,
            restart_mps=self._restart_mps,
            drain_mps=self._drain_mps,
            scrape=self._metrics.scrape,
        )

    def _state(self) -> NodeState:
        """With the daemons, the cluster and health as they are at this moment."""
        state = self._reconciler.state
        of_cluster = self._cluster.problems if self._cluster else ()
        return replace(
            state,
            problems=(*state.problems, *self._metrics.problems, *of_cluster),
            mps=self._mps.overview().daemons,
            cluster=self._cluster.state if self._cluster else None,
            health=self._health.state,
        )

    def _plan(self) -> Json:
        state = self._reconciler.state
        plan = state.plan or NodePlan(Verdict.IN_SYNC)
        return plan_json(plan, digest=state.digest, source=state.source)

    def _preview(self, text: bytes, configuration: str | None) -> Preview | None:
        state = self._reconciler.state
        if state.observed_at is None:
            return None
        return preview(text, configuration, state.observed, self._policy, self._mps.host_for)

    # --- MPS ------------------------------------------------------------------------------------

    def _mps_report(self, device: str | None) -> Json | None:
        state = self._state()
        return mps_answer(
            state.mps,
            node=state.node,
            observed=state.observed,
            observed_at=state.observed_at,
            device=device,
        )

    async def _restart_mps(self, device: str, force: bool) -> Json:
        await self._mps.restart(device, force=force)
        return self._done_with(device, "restarted")

    async def _drain_mps(self, device: str, seconds: float | None, force: bool) -> Json:
        await self._mps.drain(device, seconds=seconds, force=force)
        return self._done_with(device, "drained")

    def _done_with(self, device: str, done: str) -> Json:
        state = self._state()
        daemon = next((d for d in state.mps if d.device == device), DaemonState(device, "Down"))
        return done_json(daemon, done, state.observed)
