"""The node in one word and in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.node_state import NodeState, Phase, not_ready, phase_of


def problems(*codes: Code) -> list[Problem]:
    """One problem of each code."""
    return [Problem(code=code, message=f"the message of {code}") for code in codes]


PHASES: tuple[tuple[bool, Verdict | None, list[Code], Phase], ...] = (
    (False, Verdict.IN_SYNC, [], Phase.IN_SYNC),
    (False, None, [], Phase.NO_PLAN),
    (False, None, [Code.MPS], Phase.NO_PLAN),
    (False, Verdict.BLOCKED, [Code.IN_USE], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [Code.RESET_REQUIRED], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [], Phase.BLOCKED),
    (False, Verdict.BLOCKED, [Code.IN_USE, Code.GPU_LOST], Phase.FAILED),
    (False, Verdict.APPLICABLE, [Code.STEP_FAILED], Phase.FAILED),
    (False, Verdict.APPLICABLE, [], Phase.FAILED),
    (False, Verdict.UNSATISFIABLE, [Code.DOES_NOT_FIT], Phase.FAILED),
    (False, Verdict.APPLICABLE, [Code.DRIFT], Phase.FAILED),
    (True, Verdict.IN_SYNC, [], Phase.REJECTED),
    (True, Verdict.BLOCKED, [Code.STEP_FAILED], Phase.REJECTED),
)


def test_the_phase() -> None:
    """A refused document first, then what needs a person, then what only needs time."""
    for refused, verdict, codes, phase in PHASES:
        plan = NodePlan(verdict) if verdict else None
        assert phase_of(refused=refused, plan=plan, problems=problems(*codes)) is phase, refused


SENTENCES: tuple[tuple[NodeState, str], ...] = (
    (NodeState("n", "file", Phase.NO_PLAN), "no plan yet"),
    (NodeState("n", "file", Phase.NO_PLAN, note="it is not there"), "it is not there"),
    (NodeState("n", "file", Phase.IN_SYNC, "sha256:0"), "the node is as the plan says"),
    (
        NodeState("n", "file", Phase.IN_SYNC, "sha256:0", note="the file is gone"),
        "the node is as the plan says; the file is gone",
    ),
    (
        NodeState("n", "file", Phase.FAILED, problems=tuple(problems(*Code)[:3])),
        "the message of Syntax (and 2 more)",
    ),
    (NodeState("n", "file", Phase.WORKING), "working"),
)


def test_the_sentence() -> None:
    """What a person reads first."""
    for state, sentence in SENTENCES:
        assert state.sentence == sentence, state


def test_readiness_has_reasons() -> None:
    """Ready after the first round, as long as the driver answers."""
    new = NodeState("n", "file", driver_error="the NVIDIA driver is not loaded")
    assert not_ready(new) == (
        "the driver does not answer: the NVIDIA driver is not loaded",
        "the first reconciliation is not done yet",
    )
    assert not_ready(NodeState("n", "file", rounds=1, observed_at=datetime.now(UTC))) == ()
