"""What the agent publishes on its Node: status, facts for schedulers, conditions and Events. Pure.

Equal Events are counted in one, so what differs each time without being news (pids, log lines, the
digest of one more plan with the same fault) is left out.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from nodeagent.cluster.client.node_view import UNHEALTHY, NodeView, Wanted
from nodeagent.cluster.events import NodeEvent
from nodeagent.health.reporting import Condition
from nodeagent.reconcile.event_log import EventType, lasting_message
from nodeagent.structs import Struct, field
from nodeagent.views.conditions import HEALTHY, conditions
from nodeagent.views.headline import headline
from nodeagent.views.layout_facts import (
    LAYOUT,
    TOPOLOGY,
    label_changes,
    layout,
    layout_labels,
    topology,
)
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Event, Json
from nodeagent.views.status_annotation import STATUS, StatusAnnotation, has_looked, status_content


def node_event(event: Event) -> NodeEvent | None:
    """The Event about the Node; None for what is of no interest there."""
    if event.routine or not EventType(event.type).on_node:
        return None
    kind: Literal["Normal", "Warning"] = "Warning" if event.severity == "warning" else "Normal"
    return NodeEvent(kind, event.type, lasting_message(event))


class Facts(Struct, frozen=True):
    """What is to be shown of one state, whatever the Node shows already: made once for each state.

    `status` is the content of the status annotation, None before there is anything to say.
    """

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    status: Json | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)


NOTHING: Final = Facts()


def facts_of(state: NodeState | None, *, labels: bool) -> Facts:
    """The facts of a state, None before there is one; `labels`: with labels for schedulers."""
    if state is None:
        return NOTHING
    worst = headline(state)
    annotations: dict[str, str | None] = {}
    if state.observed_at is not None:
        # Before the first observation an earlier agent's annotations stay: they may still be right.
        annotations[TOPOLOGY] = topology(state.observed)
        annotations[LAYOUT] = layout(state.observed, state.mps)
    return Facts(
        annotations,
        layout_labels(state.observed) if labels else {},
        status_content(state, worst) if has_looked(state) else None,
        conditions(state, worst),
    )


def shown_facts(
    facts: Facts, view: NodeView, status: StatusAnnotation, *, taints: bool, now: datetime
) -> Wanted:
    """What the Node of this view should show of the facts.

    `status` keeps its text, and its moment, while nothing changes. `taints`: whether an unhealthy
    GPU taints the Node; without it the agent's taint is removed.
    """
    if facts is NOTHING:
        return Wanted()
    annotations = dict(facts.annotations)
    if facts.status is not None:
        existing = view.annotations.get(STATUS)
        annotations[STATUS] = status.text(facts.status, existing=existing, now=now)
    healthy = facts.conditions[HEALTHY].status
    # While it is not known, the taint stays as it is.
    known = healthy != "Unknown" or not taints
    tainted = {UNHEALTHY: taints and healthy == "False"} if known else {}
    return Wanted(annotations, label_changes(view.labels, facts.labels), facts.conditions, tainted)
