"""The agent's own annotations as a plan."""

from __future__ import annotations

from nodeagent.cluster.plan_sources.annotation import PLAN, PLAN_NAME, offer
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan

FILE = PlanText(b"the file")
MISSING = NoPlan(
    "no /etc/x", Problem(code=Code.SOURCE_MISSING, message="no /etc/x", remedy="write it")
)
UNREADABLE = UnreadablePlan(Problem(code=Code.SYNTAX, message="no"))


def test_a_plan() -> None:
    """The text as it is, with the name beside it where there is one; no file matters."""
    cases: list[PlanUpdate] = [FILE, MISSING, UNREADABLE]
    for file in cases:
        assert offer({PLAN: "a"}, file) == PlanText(b"a")
        assert offer({PLAN: "a", PLAN_NAME: "n"}, file) == PlanText(b"a", "n")
        assert offer({PLAN: "a", PLAN_NAME: ""}, file) == PlanText(b"a")


def test_any_text() -> None:
    """Whatever an API server lets through is passed on, to be refused where texts are read."""
    cases: list[tuple[str, bytes]] = [
        ("", b""),
        ("\x00\x1b[31m\r", b"\x00\x1b[31m\r"),
        ("\ud800", b"\xed\xa0\x80"),
        ("x" * 262_144, b"x" * 262_144),
    ]
    for text, encoded in cases:
        assert offer({PLAN: text}, MISSING) == PlanText(encoded)


def test_a_name_alone() -> None:
    """It is a configuration in the plan file; without that there is no plan, and why."""
    assert offer({PLAN_NAME: "n"}, FILE) == PlanText(b"the file", "n")
    assert offer({PLAN_NAME: "n"}, UNREADABLE) == UNREADABLE
    found = offer({PLAN_NAME: "n"}, MISSING)
    assert isinstance(found, NoPlan)
    assert found.reason == f'the annotation {PLAN_NAME} is "n", but {MISSING.reason}'
    assert found.problem == Problem(
        code=Code.SOURCE_MISSING, message=found.reason, remedy="write it"
    )


def test_nothing() -> None:
    """Without either of them nothing is asked for."""
    cases: list[dict[str, str]] = [{}, {PLAN_NAME: ""}, {"example.com/plan": "x"}]
    for written in cases:
        for file in (FILE, MISSING):
            nothing = offer(written, file)
            assert isinstance(nothing, NoPlan)
            assert nothing.problem is None
