"""nos' protocol as a plan source: its partitioner requests, and gets the state reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.cluster.plan_sources.nos.grammar import SPEC_PLAN, Mode, mode_of
from nodeagent.cluster.plan_sources.nos.plugin_configuration import (
    CONFIGURATION_LABEL,
    NosConfiguration,
    ReadIntervals,
)
from nodeagent.cluster.plan_sources.nos.status import status_annotations, withdrawn
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan, deferred_plan
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate
from nodeagent.text import shown
from nodeagent.views.node_state import NodeState

log = structlog.get_logger(__name__)


class NosSource(NodeSource):
    """Asks for what nos' spec annotations, or its configuration of the device plugin, say.

    `config_map` is NAMESPACE/NAME of the latter, None where it is not to be read; UsageError if
    it is written otherwise. `remarks` are what nos ignores in silence, or does without an explicit
    request.
    """

    def __init__(
        self,
        offer: Offer,
        access: ClusterAccess,
        config_map: str | None,
        *,
        rounds: Callable[[], int],
        intervals: ReadIntervals = ReadIntervals(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(offer, rounds=rounds)
        self._configuration = (
            NosConfiguration(access, config_map, self.update, intervals=intervals)
            if config_map
            else None
        )
        self._remarked: DeferredNosPlan | None = None
        self._to_remark: asyncio.Queue[tuple[DeferredNosPlan, ObservedNode]] = asyncio.Queue(1)
        self.remarks: tuple[Problem, ...] = ()

    async def run(self) -> None:
        """Read the ConfigMap whenever the label names another key, until cancelled."""
        async with asyncio.TaskGroup() as parts:
            if self._configuration:
                parts.create_task(self._configuration.run(), name="read nos' ConfigMap")
            parts.create_task(self._log_remarks(), name="look for what nos ignores")

    def observe(self, view: NodeView | None) -> None:
        if self._configuration:
            self._configuration.want(_key(view) if view else None)
        super().observe(view)

    def requested(self, view: NodeView) -> PlanUpdate | DeferredNosPlan | None:
        """None while the configuration is being read."""
        key = _key(view)
        if key is None:
            return deferred_plan(view.annotations, view.labels)
        if self._configuration is None:
            if view.annotations.get(SPEC_PLAN):
                return deferred_plan(view.annotations, view.labels)
            return NoPlan(
                f"the label {CONFIGURATION_LABEL} names nos' configuration {shown(key)}, and "
                "kubernetes.nos_config_map does not say which ConfigMap it is in"
            )
        found = self._configuration.found
        if isinstance(found, str):
            return deferred_plan(view.annotations, view.labels, found)
        return found

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is free and in use, and the plan that this is the answer to."""
        judged = self.is_judged_in(state)
        last = self.last_offer
        if judged and isinstance(last, DeferredNosPlan) and last != self._remarked:
            with suppress(asyncio.QueueFull):
                self._to_remark.put_nowait((last, state.observed))
                self._remarked = last
        annotations = status_annotations(
            state, offered, annotations=view.annotations, labels=view.labels, judged=judged
        )
        return Wanted(annotations=annotations)

    def withdrawal(self, view: NodeView) -> Wanted:
        """The counts, which are no longer kept true."""
        return Wanted(annotations=withdrawn(view.annotations))

    async def _log_remarks(self) -> NoReturn:
        """Once for each request; found in a thread, because there may be much of it."""
        while True:
            requested, observed = await self._to_remark.get()
            found = await asyncio.to_thread(requested.remarks, observed)
            if found != self.remarks:
                self.remarks = found
                for remark in found:
                    log.warning(remark.message, remedy=remark.remedy)


def _key(view: NodeView) -> str | None:
    """The key of the ConfigMap that matters for this node; None when none does."""
    if mode_of(view.labels) not in (Mode.MPS, Mode.HYBRID):
        return None
    return view.labels.get(CONFIGURATION_LABEL) or None
