from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import ANNOTATIONS, LABELS, NodeView
from nodeagent.cluster.plan_sources.node_source import (
    NO_NODE,
    PLAN,
    PLAN_NAME,
    AnnotationSource,
    offer,
)
from nodeagent.cluster.plan_sources.registry import CARRIERS, make_source
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.settings import PlanSettings
from tests.cluster.client.rig import running
from tests.machine_load import until


def test_settings_and_registry_agree(access: ClusterAccess, tmp_path: Path) -> None:
    choices = get_args(get_type_hints(PlanSettings)["source"])
    assert choices == ("auto", "file", *CARRIERS)
    for name, carrier in CARRIERS.items():
        prefixes = LABELS if carrier.kind == "label" else ANNOTATIONS
        assert carrier.key.startswith(prefixes)
        source = make_source(
            name,
            offer=lambda _: None,
            rounds=lambda: 0,
            follow=partial(PlanFile, tmp_path / "plan.yaml"),
        )
        source.observe(NodeView())


# --- annotations to a plan ----------------------------------------------------------------------

PLAN_FILE = PlanText(b"the file")
MISSING = NoPlan(
    "no /etc/x", Problem(code=Code.SOURCE_MISSING, message="no /etc/x", remedy="write it")
)
UNREADABLE = UnreadablePlan(Problem(code=Code.SYNTAX, message="no"))


def test_a_plan() -> None:
    """The text as it is, with the name beside it where there is one; no file matters."""
    cases: list[PlanUpdate] = [PLAN_FILE, MISSING, UNREADABLE]
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
    assert offer({PLAN_NAME: "n"}, PLAN_FILE) == PlanText(b"the file", "n")
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
        for file in (PLAN_FILE, MISSING):
            nothing = offer(written, file)
            assert isinstance(nothing, NoPlan)
            assert nothing.problem is None


async def test_when_it_is_offered(tmp_path: Path) -> None:
    """A plan does not wait for the file; a name alone does, and follows it. Each thing is offered
    once, whatever else is written on the Node.
    """
    offers: list[object] = []
    file = tmp_path / "plan.yaml"
    source = AnnotationSource(offers.append, rounds=lambda: 0, follow=partial(PlanFile, file))
    source.observe(NodeView(annotations={PLAN_NAME: "mine"}))
    assert offers == []
    source.observe(NodeView(annotations={PLAN: "x", PLAN_NAME: "mine"}))
    assert offers == [PlanText(b"x", "mine")]
    source.observe(NodeView(annotations={PLAN_NAME: "mine"}))
    async with running(source.run()):
        await until(lambda: offers[1:])
        assert isinstance(offers[1], NoPlan)
        file.write_text("one")
        await until(lambda: offers[2:] == [PlanText(b"one", "mine")])
        source.observe(NodeView(annotations={PLAN_NAME: "mine", "other": "x"}))
        source.observe(None)
        source.observe(None)
    assert offers[3:] == [NO_NODE]
