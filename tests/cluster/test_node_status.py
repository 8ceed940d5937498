"""What a Node should show of each state: facts as labels, and a taint, where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.node_status import shown_state
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.structs import replace
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
    wanted = shown_state(
        _state(access), NodeView(), StatusAnnotation(), labels=False, taints=taints, now=NOW
    )
    assert wanted.taints == expected


def test_labels_that_are_not_wanted_any_more_go() -> None:
    """Those of the agent, and no others."""
    foreign = {"example.com/mine": "1"}

    def labels(there: Mapping[str, str], *, wanted: bool) -> dict[str, str | None]:
        view, status = NodeView(labels={**foreign, **there}), StatusAnnotation()
        state = _state(Access.OK)
        return dict(shown_state(state, view, status, labels=wanted, taints=False, now=NOW).labels)

    shown = {key: text for key, text in labels({}, wanted=True).items() if text}
    assert shown
    assert labels(shown, wanted=False) == dict.fromkeys(shown)


def test_nothing_is_shown_before_anything_is_known() -> None:
    """What the agent before this one left is kept."""
    shown = shown_state(None, NodeView(), StatusAnnotation(), labels=True, taints=True, now=NOW)
    assert shown == type(shown)()
