"""What the agent publishes on its Node: status, facts for schedulers, conditions and Events. Pure.

Equal Events are counted in one, so what differs each time without being news (pids, log lines, the
digest of one more plan with the same fault) is left out.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, Literal

from nodeagent.cluster.client.events import NodeEvent
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.client.node_writer import Wanted
from nodeagent.cluster.client.taints import UNHEALTHY
from nodeagent.reconcile.event_log import Event, EventType
from nodeagent.reconcile.event_reporter import LAST_SAID
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
from nodeagent.views.status_annotation import STATUS, StatusAnnotation

_DIGEST = re.compile(r"\bplan sha256:[0-9a-f]+\b")
_PROCESS = re.compile(r"\b(?P<what>pid|server|process) \d+\b")


_NORMAL: Final = frozenset(
    {
        EventType.STARTED,
        EventType.STOPPING,
        EventType.PLAN_ACCEPTED,
        EventType.PLAN_MISSING,
        EventType.APPLIED,
        EventType.RESTORED,
        EventType.GPU_RETURNED,
        EventType.GPU_NOTICE,
        EventType.GPU_RECOVERED,
        EventType.XID,
        EventType.DRIVER_RETURNED,
        EventType.MPS_DRAINED,
        EventType.EVICTED,
    }
)
# What should be so, for each of up to dozens of daemons; the status has them.
_NOT_PUBLISHED: Final = frozenset({EventType.MPS_STARTED, EventType.MPS_READY})


def node_event(event: Event) -> NodeEvent | None:
    """The Event about the Node; None for what is of no interest there."""
    if event.type in _NOT_PUBLISHED:
        return None
    kind: Literal["Normal", "Warning"] = "Normal" if event.type in _NORMAL else "Warning"
    return NodeEvent(kind, event.type.value, _message_of(event))


def _message_of(event: Event) -> str:
    if event.type is EventType.PLAN_REJECTED:
        return _DIGEST.sub("the plan", event.message)
    if event.type in {EventType.MPS_ENDED, EventType.MPS_FAULT, EventType.MPS_FAILED}:
        message = event.message.partition(LAST_SAID)[0]
        return _PROCESS.sub(lambda m: "the " + m["what"].replace("pid", "process"), message)
    return event.message


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
