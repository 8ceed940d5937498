"""nos' protocol as a plan source: its partitioner requests, and gets the state reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import structlog

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.client.node_writer import Wanted
from nodeagent.cluster.plan_sources.node_source import NO_NODE, LastOffer, Offer
from nodeagent.cluster.plan_sources.nos.grammar import SPEC_PLAN, Mode, mode_of
from nodeagent.cluster.plan_sources.nos.plugin_configuration import (
    CONFIGURATION_LABEL,
    NosConfiguration,
    ReadIntervals,
    configuration_key,
)
from nodeagent.cluster.plan_sources.nos.status import status_annotations, withdrawn
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan, deferred_plan
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate
from nodeagent.text import shown
from nodeagent.views.node_state import NodeState

log = structlog.get_logger(__name__)


class NosSource:
    """Asks for what nos' spec annotations, or its configuration of the device plugin, say.

    `config_map` is NAMESPACE/NAME of the latter, None where it is not to be read; UsageError if
    it is written otherwise. `rounds` says how many rounds the loop has finished.

    `remarks` are what nos passes over in silence, or does without being asked in so many words.
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
        self._last_offer = LastOffer(offer, rounds)
        self._configuration = (
            NosConfiguration(access, config_map, self._update, intervals=intervals)
            if config_map
            else None
        )
        self._view: NodeView | None = None
        self._seen = False
        self._remarked: DeferredNosPlan | None = None
        self._to_remark: asyncio.Queue[tuple[DeferredNosPlan, ObservedNode]] = asyncio.Queue(
            maxsize=1
        )
        self.remarks: tuple[Problem, ...] = ()

    async def run(self) -> NoReturn:
        """Read the ConfigMap whenever the label names another key, until cancelled."""
        async with asyncio.TaskGroup() as parts:
            if self._configuration:
                parts.create_task(self._configuration.run(), name="read nos' ConfigMap")
            parts.create_task(self._remark(), name="look for what nos passes over")
        raise AssertionError("neither ends by itself")

    def saw(self, view: NodeView | None) -> None:
        """Ask for what nos wants of this Node."""
        self._view, self._seen = view, True
        if self._configuration:
            self._configuration.want(_key(view))
        self._update()

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is free and in use, and the plan that this is the answer to."""
        judged = self._last_offer.is_judged_in(state)
        if judged:
            self._look_for_remarks(state.observed)
        annotations = status_annotations(
            state, offered, annotations=view.annotations, labels=view.labels, judged=judged
        )
        return Wanted(annotations=annotations)

    def withdrawal(self, view: NodeView) -> Wanted:
        """The counts, which are no longer kept true."""
        return Wanted(annotations=withdrawn(view.annotations))

    # --- what is asked for ------------------------------------------------------------------------

    def _update(self) -> None:
        if self._seen:
            wanted = self._wanted()
            if wanted is not None:
                self._last_offer.update(wanted)

    def _wanted(self) -> PlanUpdate | DeferredNosPlan | None:
        """What is asked for now; None while the configuration is being read."""
        view = self._view
        if view is None:
            return NO_NODE
        key = _key(view)
        if key is None:
            return deferred_plan(view.annotations, view.labels)
        if self._configuration is None:
            if view.annotations.get(SPEC_PLAN):
                return deferred_plan(view.annotations, view.labels)
            return _nowhere(key)
        if self._configuration.text is not None:
            return deferred_plan(view.annotations, view.labels, self._configuration.text)
        return self._configuration.trouble

    # --- what nos ignores in silence --------------------------------------------------------------

    def _look_for_remarks(self, observed: ObservedNode) -> None:
        asked = self._last_offer.last
        if (
            isinstance(asked, DeferredNosPlan)
            and asked != self._remarked
            and self._to_remark.empty()
        ):
            self._remarked = asked
            self._to_remark.put_nowait((asked, observed))

    async def _remark(self) -> NoReturn:
        """Log what nos ignores, once; found in a thread, because there may be much of it."""
        while True:
            asked, observed = await self._to_remark.get()
            found = await asyncio.to_thread(asked.remarks, observed)
            if found != self.remarks:
                self.remarks = found
                for remark in found:
                    log.warning(remark.message, remedy=remark.remedy)


def _key(view: NodeView | None) -> str | None:
    """The key of the ConfigMap that matters for this node; None when none does."""
    if view is None or mode_of(view.labels) not in (Mode.MPS, Mode.HYBRID):
        return None
    return configuration_key(view.labels)


def _nowhere(key: str) -> NoPlan:
    return NoPlan(
        f"the label {CONFIGURATION_LABEL} names nos' configuration {shown(key)}, and "
        "kubernetes.nos_config_map does not say which ConfigMap it is in"
    )
