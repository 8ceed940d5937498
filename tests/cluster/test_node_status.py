from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.events import NodeEvent
from nodeagent.cluster.node_status import facts_of, node_event, shown_facts
from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import event_of
from nodeagent.structs import replace
from nodeagent.views.layout_facts import LAYOUT, TOPOLOGY
from nodeagent.views.node_state import NodeState
from nodeagent.views.status_annotation import StatusAnnotation
from tests.views.example_node import IN_SYNC, OBSERVED

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAINT = "nodeagent.io/gpu-unhealthy"
FIRST, SECOND = OBSERVED.gpus
LOST = replace(FIRST, access=Access.LOST, access_reason="it fell off the bus")
SILENT = replace(FIRST, access=Access.UNKNOWN, access_reason="a call hangs")


def _state(access: Access) -> NodeState:
    first = {Access.OK: FIRST, Access.LOST: LOST, Access.UNKNOWN: SILENT}[access]
    return replace(IN_SYNC, observed=ObservedNode((first, SECOND)))


def shown(
    state: NodeState | None, view: NodeView, *, labels: bool = False, taints: bool = False
) -> Wanted:
    facts = facts_of(state, labels=labels)
    return shown_facts(facts, view, StatusAnnotation(), taints=taints, now=NOW)


@pytest.mark.parametrize(
    ("taints", "access", "expected"),
    [
        (True, Access.OK, {TAINT: False}),
        (True, Access.LOST, {TAINT: True}),
        pytest.param(True, Access.UNKNOWN, {}, id="it stays as it is"),
        (False, Access.OK, {TAINT: False}),
        (False, Access.LOST, {TAINT: False}),
        pytest.param(False, Access.UNKNOWN, {TAINT: False}, id="one of ours that is left goes"),
    ],
)
def test_the_taint(taints: bool, access: Access, expected: dict[str, bool]) -> None:
    """Only where taints are set, only while a GPU is known to be unhealthy."""
    wanted = shown(_state(access), NodeView(), taints=taints)
    assert wanted.taints == expected


def test_labels_that_are_not_wanted_any_more_go() -> None:
    foreign = {"example.com/mine": "1"}

    def labels(there: Mapping[str, str], *, wanted: bool) -> dict[str, str | None]:
        view = NodeView(labels={**foreign, **there})
        return dict(shown(_state(Access.OK), view, labels=wanted).labels)

    mine = {key: text for key, text in labels({}, wanted=True).items() if text}
    assert mine
    assert labels(mine, wanted=False) == dict.fromkeys(mine)


def test_of_gpus_that_were_never_observed_the_facts_that_are_there_stay() -> None:
    facts = {LAYOUT, TOPOLOGY}
    assert facts <= shown(IN_SYNC, NodeView()).annotations.keys()
    unseen = replace(IN_SYNC, observed=ObservedNode(), observed_at=None)
    assert not facts & shown(unseen, NodeView()).annotations.keys()


def test_nothing_is_shown_before_anything_is_known() -> None:
    assert shown(None, NodeView(), labels=True, taints=True) == Wanted()


# --- Events ---------------------------------------------------------------------------------------


def reported(kind: EventType, message: str) -> NodeEvent | None:
    return node_event(EventLog().add(kind, message, gpu="GPU-0"))


def test_which_events_are_events() -> None:
    assert reported(EventType.APPLIED, "m") == NodeEvent("Normal", "Applied", "m")
    assert reported(EventType.GPU_LOST, "m") == NodeEvent("Warning", "GpuLost", "m")
    for kind in EventType:
        if kind.startswith(("Step", "Claim")):
            assert reported(kind, "m") is None


def test_a_daemon_that_ends_again_and_again_is_one_cause() -> None:
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
    message = "GPU 0 is in use by pid 4711 (python)"
    assert reported(EventType.BLOCKED, message) == NodeEvent("Warning", "Blocked", message)


def test_the_same_fault_in_another_plan_is_one_cause() -> None:
    causes = {
        reported(EventType.PLAN_REJECTED, f"plan sha256:{digit * 64} is refused: gpus: no list")
        for digit in "ab"
    }
    assert causes == {NodeEvent("Warning", "PlanRejected", "the plan is refused: gpus: no list")}
