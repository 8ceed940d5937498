"""The state label: each value when it is right, and the sequences that people see."""

from __future__ import annotations

import pytest

from nodeagent.cluster.plan_sources.mig_config.source import SOURCE, MigState, state_of
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, blocking_codes
from nodeagent.views.shapes import Refused

TEXT = PlanText(b"the file", "mine")
UNKNOWN = UnreadablePlan(Problem(code=Code.UNKNOWN_CONFIGURATION, message="no such"))
LABELS = {CONFIG: "mine"}
IN_SYNC = NodeState(
    "node-a",
    SOURCE,
    Phase.IN_SYNC,
    digest=digest_of(TEXT.text),
    configuration="mine",
    plan=NodePlan(Verdict.IN_SYNC),
    rounds=4,
)


def blocked(*codes: Code) -> NodeState:
    """A state that waits for these."""
    problems = tuple(Problem(code=code, message="why") for code in codes)
    return replace(
        IN_SYNC,
        phase=Phase.BLOCKED,
        plan=NodePlan(Verdict.BLOCKED),
        problems=problems,
        blocking=blocking_codes(problems),
    )


# Of the agent's readers and of claims, which the plan does not wait for.
NOT_OF_THE_PLAN = (
    Problem(code=Code.READER, message="why"),
    Problem(code=Code.OWNED, message="no claims"),
)


def test_the_state() -> None:
    """Success only for what is so; failed only where a person is needed."""
    cases: list[tuple[NodeState, MigState]] = [
        (IN_SYNC, MigState.SUCCESS),
        (replace(IN_SYNC, digest="sha256:another"), MigState.PENDING),
        (replace(IN_SYNC, configuration="another"), MigState.PENDING),
        (replace(IN_SYNC, source="annotation"), MigState.PENDING),
        (replace(IN_SYNC, plan=None), MigState.PENDING),
        (replace(IN_SYNC, refusal=Refused(digest="sha256:0", problems=())), MigState.FAILED),
        (replace(IN_SYNC, phase=Phase.WORKING), MigState.PENDING),
        (blocked(Code.IN_USE), MigState.PENDING),
        (blocked(Code.IN_USE, Code.MPS_CLIENT), MigState.PENDING),
        (blocked(Code.CLUSTER), MigState.PENDING),
        (blocked(Code.OWNED), MigState.FAILED),
        (blocked(), MigState.PENDING),
        (replace(blocked(Code.IN_USE), problems=NOT_OF_THE_PLAN), MigState.PENDING),
        (replace(blocked(Code.OWNED), problems=NOT_OF_THE_PLAN), MigState.FAILED),
        (blocked(Code.RESET_REQUIRED), MigState.FAILED),
        (blocked(Code.IN_USE, Code.RESET_REQUIRED), MigState.FAILED),
        (replace(IN_SYNC, phase=Phase.FAILED), MigState.FAILED),
        (replace(IN_SYNC, phase=Phase.REJECTED), MigState.FAILED),
        (replace(IN_SYNC, driver_error="no driver", rounds=0), MigState.FAILED),
    ]
    for node, state in cases:
        assert state_of(LABELS, node, TEXT, judged=True) is state


@pytest.mark.parametrize("offered", [TEXT, UNKNOWN, NoPlan("not yet"), None])
@pytest.mark.parametrize(
    "node", [IN_SYNC, replace(IN_SYNC, refusal=Refused(digest="sha256:0", problems=()))]
)
def test_what_was_asked_for_before_says_nothing(
    node: NodeState, offered: PlanUpdate | None
) -> None:
    """A state that is not of this configuration is neither its success nor its failure."""
    assert state_of(LABELS, node, offered, judged=False) is MigState.PENDING


def test_an_unknown_name_has_failed() -> None:
    """It needs a person, whatever the node is like."""
    assert state_of(LABELS, IN_SYNC, UNKNOWN, judged=True) is MigState.FAILED


def test_a_name_of_which_nothing_is_known_yet_is_pending() -> None:
    """Before the cards are known, nothing is promised and nothing has failed."""
    assert state_of(LABELS, IN_SYNC, NoPlan("not yet"), judged=True) is MigState.PENDING


def test_a_dead_driver_has_failed() -> None:
    """Also where it never lived, so that it is not even known what the name means."""
    dead = replace(IN_SYNC, driver_error="no driver", rounds=0)
    assert state_of(LABELS, dead, None, judged=False) is MigState.FAILED


def test_without_a_name_there_is_no_state() -> None:
    """Taking the configuration's label away takes the state's away too."""
    assert state_of({}, IN_SYNC, NoPlan("none"), judged=True) is None
