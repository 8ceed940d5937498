"""Which events of the agent become Events about the Node, and as what."""

from __future__ import annotations

import re

import pytest

from nodeagent.cluster.events import NodeEvent
from nodeagent.cluster.node_status import node_event
from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import event_of

WARNINGS = {
    EventType.PLAN_REJECTED,
    EventType.BLOCKED,
    EventType.FAILED,
    EventType.DRIFT,
    EventType.GPU_LOST,
    EventType.GPU_UNHEALTHY,
    EventType.GPU_DEGRADED,
    EventType.GPU_UNKNOWN,
    EventType.DRIVER_UNAVAILABLE,
    EventType.MPS_ENDED,
    EventType.MPS_FAULT,
    EventType.MPS_FAILED,
    EventType.MPS_IN_USE,
    EventType.MPS_CLIENT,
    EventType.OTHER_OWNER,
    EventType.UNCHECKED,
    EventType.CONTESTED,
    EventType.NOT_OFFERED,
}
UNINTERESTING = {
    EventType.MPS_STARTED,
    EventType.MPS_READY,
    EventType.PLAN_SOURCE,
    EventType.SETTINGS_KEPT,
    EventType.CHANGED_FOR_CLAIM,
    EventType.LESS_OFFERED,
    EventType.CLUSTER_FAULT,
    EventType.CLUSTER_RETURNED,
    EventType.NODE_CHANGED,
    EventType.PLUGIN_RESTARTED,
    *(kind for kind in EventType if kind.startswith(("Step", "Claim"))),
}


def reported(kind: EventType, message: str) -> NodeEvent | None:
    """What becomes of an event."""
    return node_event(EventLog().add(kind, message, gpu="GPU-0"))


@pytest.mark.parametrize("kind", EventType)
def test_every_event(kind: EventType) -> None:
    """Warnings are what a person should look at; the reason is the event's own name."""
    event = reported(kind, "so it is")
    if kind in UNINTERESTING:
        assert event is None
        return
    assert event == NodeEvent("Warning" if kind in WARNINGS else "Normal", kind.value, "so it is")
    assert re.fullmatch(r"[A-Z][A-Za-z]+", event.reason)


def test_a_daemon_that_ends_again_and_again_is_one_cause() -> None:
    """Its pid and the last line of its log, which differ each time, are left out."""
    causes = set()
    for pid in (815, 4711):
        kind, message = event_of(
            Report(
                ReportSubject.EXITED, f"pid {pid} ended by itself", (f"[12:00:{pid}] no device",)
            )
        )
        causes.add(reported(kind, f"GPU 0: {message}"))
    assert causes == {NodeEvent("Warning", "MpsEnded", "GPU 0: the process ended by itself")}


def test_who_blocks_is_named() -> None:
    """There the pid is the news."""
    message = "GPU 0 is in use by pid 4711 (python)"
    assert reported(EventType.BLOCKED, message) == NodeEvent("Warning", "Blocked", message)


def test_the_same_fault_in_another_plan_is_one_cause() -> None:
    """The digest of a refused plan differs with every space, what is wrong with it does not."""
    causes = {
        reported(EventType.PLAN_REJECTED, f"plan sha256:{digit * 64} is refused: gpus: no list")
        for digit in "ab"
    }
    assert causes == {NodeEvent("Warning", "PlanRejected", "the plan is refused: gpus: no list")}
