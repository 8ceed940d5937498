"""What a Node should show of each state: facts as labels, and a taint, where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.node_status import facts_of, shown_facts
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


def shown(
    state: NodeState | None, view: NodeView, *, labels: bool = False, taints: bool = False
) -> Wanted:
    """What a Node like this should show."""
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
    """Those of the agent, and no others."""
    foreign = {"example.com/mine": "1"}

    def labels(there: Mapping[str, str], *, wanted: bool) -> dict[str, str | None]:
        view = NodeView(labels={**foreign, **there})
        return dict(shown(_state(Access.OK), view, labels=wanted).labels)

    mine = {key: text for key, text in labels({}, wanted=True).items() if text}
    assert mine
    assert labels(mine, wanted=False) == dict.fromkeys(mine)


def test_nothing_is_shown_before_anything_is_known() -> None:
    """What the agent before this one left is kept."""
    assert shown(None, NodeView(), labels=True, taints=True) == Wanted()
