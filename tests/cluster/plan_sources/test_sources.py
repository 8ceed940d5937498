"""The plan sources that settings name, and the first of them: the agent's own annotations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import ANNOTATIONS, LABELS
from nodeagent.cluster.plan_sources.annotation import PLAN, PLAN_NAME, AnnotationSource, offer
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.cluster.plan_sources.registry import CARRIERS, make_source
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.settings import PlanSettings
from nodeagent.views.node_state import Phase
from tests.cluster.node_rig import Home, at_home, view_of
from tests.machine_load import stretched
from tests.rig import plan_text


def test_settings_and_registry_agree(access: ClusterAccess, tmp_path: Path) -> None:
    """Each can be made, and what it reads is in the view of the Node."""
    choices = get_args(get_type_hints(PlanSettings)["source"])
    assert choices == ("auto", "file", *CARRIERS)
    for name, carrier in CARRIERS.items():
        prefixes = LABELS if carrier.kind == "label" else ANNOTATIONS
        assert carrier.key.startswith(prefixes)
        source = make_source(
            name,
            None,
            access=access,
            offer=lambda _: None,
            rounds=lambda: 0,
            follow=partial(PlanFile, tmp_path / "plan.yaml"),
        )
        source.observe(view_of())


def test_what_a_carrier_holds() -> None:
    """One key, or all that begin alike; an empty label is none."""
    label, specs = CARRIERS["mig-config"], CARRIERS["nos"]
    assert label.values(view_of(labels={label.key: "all-1g.10gb"})) == ["all-1g.10gb"]
    assert label.values(view_of(labels={label.key: ""})) == []
    assert specs.values(view_of({"nos.nebuly.com/spec-gpu-0-1g.10gb": "7"})) == ["7"]


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


# --- on the Node --------------------------------------------------------------------------------

FILE = """\
version: v1
mig-configs:
  mine:
  - {devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 2}}
  other:
  - {devices: all, mig-enabled: true, mig-devices: {"7g.80gb": 1}}
"""
SEVEN = plan_text("{1g.10gb: 7}").decode()


@asynccontextmanager
async def annotated(folder: Path, **options: Any) -> AsyncIterator[Home]:
    """A node led by its annotations, with the plan file in `folder`."""

    def make(offer: Offer, rounds: Callable[[], int]) -> NodeSource:
        return AnnotationSource(
            offer, rounds=rounds, follow=partial(PlanFile, folder / "plan.yaml")
        )

    async with at_home(folder, make, name="annotation", **options) as home:
        yield home


async def settled(home: Home, phase: Phase) -> None:
    """Wait for the end of the next round, and for this phase."""
    before = home.rig.state.rounds
    await home.rig.until(lambda: home.rig.state.rounds > before and home.rig.state.phase is phase)
    await home.rig.rest()


async def test_a_plan_and_names(tmp_path: Path) -> None:
    """A plan, then a name in the file instead, then the file changed under it."""
    file = tmp_path / "plan.yaml"
    file.write_text(FILE)
    async with annotated(tmp_path) as home:
        home.patch({PLAN: SEVEN, PLAN_NAME: None})
        await settled(home, Phase.IN_SYNC)
        assert len(home.rig.gpu().instances) == 7
        home.patch({PLAN: None, PLAN_NAME: "mine"})
        await settled(home, Phase.IN_SYNC)
        assert home.rig.layout() == "3g.40gb at 0, 4"
        assert home.rig.state.configuration == "mine"
        new = tmp_path / "new"
        new.write_text(FILE.replace('"3g.40gb": 2', '"4g.40gb": 1'))
        new.replace(file)
        await settled(home, Phase.IN_SYNC)
        assert home.rig.layout() == "4g.40gb at 0"
        assert home.writes == []


async def test_before_the_file_was_looked_at(tmp_path: Path) -> None:
    """A plan does not wait for the file; a name alone does."""
    offers: list[object] = []
    source = AnnotationSource(
        offers.append, rounds=lambda: 0, follow=partial(PlanFile, tmp_path / "plan.yaml")
    )
    source.observe(view_of({PLAN_NAME: "mine"}))
    assert offers == []
    source.observe(view_of({PLAN: "x", PLAN_NAME: "mine"}))
    assert offers == [PlanText(b"x", "mine")]
    source.observe(view_of({PLAN_NAME: "mine"}))
    following = asyncio.create_task(source.run())
    async with asyncio.timeout(stretched(30)):
        while len(offers) < 2:
            await asyncio.sleep(0.002)
    following.cancel()
    assert isinstance(offers[1], NoPlan)
