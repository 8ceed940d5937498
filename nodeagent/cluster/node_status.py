"""What the agent publishes on its Node: status, facts for schedulers, conditions and Events. Pure.

Equal Events are counted in one, so what differs each time without being news (pids, log lines, the
digest of one more plan with the same fault) is left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from nodeagent.cluster.client.node_view import UNHEALTHY, NodeView, Wanted
from nodeagent.cluster.events import NodeEvent
from nodeagent.reconcile.event_log import EventType, lasting_message
from nodeagent.views.conditions import HEALTHY, conditions
from nodeagent.views.layout_facts import (
    LAYOUT,
    TOPOLOGY,
    label_changes,
    layout,
    layout_labels,
    topology,
)
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Event
from nodeagent.views.status_annotation import STATUS, StatusAnnotation

# Steps, whose result is published; what has Events about its claim; what the Node itself shows.
_NOT_PUBLISHED: Final = frozenset(
    {
        EventType.STEP_FAILED,
        EventType.STEP_SKIPPED,
        EventType.CLAIM_WAITING,
        EventType.CLAIM_REFUSED,
        EventType.CLAIM_NOT_RELEASED,
        EventType.CLAIM_UNHEALTHY,
        EventType.CLAIM_HEALTHY,
        EventType.LESS_OFFERED,
        EventType.PLAN_SOURCE,
        EventType.SETTINGS_KEPT,
        EventType.CLUSTER_FAULT,
        EventType.CLUSTER_RETURNED,
        EventType.NODE_CHANGED,
        EventType.PLUGIN_RESTARTED,
    }
)


def node_event(event: Event) -> NodeEvent | None:
    """The Event about the Node; None for what is of no interest there."""
    if event.routine or event.type in _NOT_PUBLISHED:
        return None
    kind: Literal["Normal", "Warning"] = "Warning" if event.severity == "warning" else "Normal"
    return NodeEvent(kind, event.type, lasting_message(event))


def shown_state(
    state: NodeState | None,
    view: NodeView,
    status: StatusAnnotation,
    *,
    labels: bool,
    taints: bool,
    now: datetime,
) -> Wanted:
    """What a Node like this should show of the state; None: nothing is known yet.

    `status` keeps its text, and its moment, while nothing changes. `labels`: whether facts for
    schedulers are labels as well, `taints`: whether an unhealthy GPU taints the Node; else those
    left of ours go away.
    """
    if state is None:
        return Wanted()
    annotations: dict[str, str | None] = {}
    if state.observed_at is not None:
        # Of GPUs that were never observed there are no facts, and what is there may be right.
        annotations[TOPOLOGY] = topology(state.observed)
        annotations[LAYOUT] = layout(state.observed, state.mps)
    text = status.text(state, there=view.annotations.get(STATUS), now=now)
    if text is not None:
        annotations[STATUS] = text
    facts = layout_labels(state.observed) if labels else {}
    shown = conditions(state)
    unhealthy = shown[HEALTHY].status == "False"
    # While it is not known, the taint stays as it is.
    known = shown[HEALTHY].status != "Unknown" or not taints
    tainted = {UNHEALTHY: taints and unhealthy} if known else {}
    return Wanted(annotations, label_changes(view.labels, facts), shown, tainted)
