"""What the agent publishes on its Node: status, facts for schedulers, conditions and Events. Pure.

Equal Events are counted in one, so what differs each time without being news (pids, log lines, the
digest of one more plan with the same fault) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, assert_never

from nodeagent.cluster.client.events import NodeEvent
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.client.node_writer import Wanted
from nodeagent.reconcile.event_log import Event, EventType
from nodeagent.reconcile.event_reporter import LAST_SAID
from nodeagent.views.conditions import conditions
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


def node_event(event: Event) -> NodeEvent | None:
    """The Event about the Node; None for what is of no interest there."""
    kind = _kind_of(event.type)
    if kind is None:
        return None
    return NodeEvent(kind, event.type.value, _message_of(event))


def _kind_of(kind: EventType) -> Literal["Normal", "Warning"] | None:
    match kind:
        case (
            EventType.STARTED
            | EventType.STOPPING
            | EventType.PLAN_ACCEPTED
            | EventType.PLAN_MISSING
            | EventType.APPLIED
            | EventType.RESTORED
            | EventType.GPU_RETURNED
            | EventType.GPU_NOTICE
            | EventType.GPU_RECOVERED
            | EventType.XID
            | EventType.DRIVER_RETURNED
            | EventType.MPS_DRAINED
            | EventType.EVICTED
        ):
            return "Normal"
        case (
            EventType.PLAN_REJECTED
            | EventType.BLOCKED
            | EventType.FAILED
            | EventType.DRIFT
            | EventType.GPU_LOST
            | EventType.GPU_UNHEALTHY
            | EventType.GPU_DEGRADED
            | EventType.GPU_UNKNOWN
            | EventType.DRIVER_UNAVAILABLE
            | EventType.MPS_ENDED
            | EventType.MPS_FAULT
            | EventType.MPS_FAILED
            | EventType.MPS_IN_USE
            | EventType.MPS_CLIENT
            | EventType.OTHER_OWNER
            | EventType.UNCHECKED
            | EventType.CONTESTED
            | EventType.NOT_OFFERED
        ):
            return "Warning"
        case EventType.MPS_STARTED | EventType.MPS_READY:
            # What should be so, for each of up to dozens of daemons; the status has them.
            return None
        case _:
            assert_never(kind)


def _message_of(event: Event) -> str:
    if event.type is EventType.PLAN_REJECTED:
        return _DIGEST.sub("the plan", event.message)
    if event.type in {EventType.MPS_ENDED, EventType.MPS_FAULT, EventType.MPS_FAILED}:
        return _PROCESS.sub(_without_number, event.message.partition(LAST_SAID)[0])
    return event.message


def _without_number(found: re.Match[str]) -> str:
    return "the process" if found["what"] == "pid" else f"the {found['what']}"


class NodeStatus:
    """What the Node should show of a state; what does not change keeps its text, its moment too.

    `labels`: whether facts for schedulers are labels as well; else those left of ours go away.
    """

    def __init__(
        self, *, labels: bool, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._labels = labels
        self._now = now
        self._status = StatusAnnotation()

    def of(self, state: NodeState | None, view: NodeView) -> Wanted:
        """What is to be there for this state on a Node like this; None: nothing is known yet."""
        if state is None:
            return Wanted()
        annotations: dict[str, str | None] = {}
        if state.observed_at is not None:
            # Of GPUs that were never observed there are no facts, and what is there may be right.
            annotations[TOPOLOGY] = topology(state.observed)
            annotations[LAYOUT] = layout(state.observed, state.mps)
        status = self._status.text(state, there=view.annotations.get(STATUS), now=self._now())
        if status is not None:
            annotations[STATUS] = status
        labels = layout_labels(state.observed) if self._labels else {}
        return Wanted(annotations, label_changes(view.labels, labels), conditions(state))
