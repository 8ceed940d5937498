"""nos' protocol as a plan source: its partitioner requests, and gets the state reported."""

import structlog

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.node_source import NodeSource
from nodeagent.cluster.plan_sources.nos.status import status_annotations
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan, deferred_plan
from nodeagent.reconcile.plan_update import PlanUpdate
from nodeagent.views.node_state import NodeState

log = structlog.get_logger(__name__)


class NosSource(NodeSource):
    """Asks for what nos' spec annotations say; its status annotations are the answer."""

    def update(self) -> None:
        """Offer what is asked for now, and log what nos ignores of it in silence."""
        before = self.last_offer
        super().update()
        if self.last_offer != before and isinstance(self.last_offer, DeferredNosPlan):
            for one in self.last_offer.ignored:
                log.warning(one.message, remedy=one.remedy)

    def requested(self, view: NodeView) -> DeferredNosPlan:
        return deferred_plan(view.annotations, view.labels)

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is free and in use, and the plan that this is the answer to."""
        judged = self.is_judged_in(state)
        annotations = status_annotations(
            state, offered, annotations=view.annotations, labels=view.labels, judged=judged
        )
        return Wanted(annotations=annotations)
