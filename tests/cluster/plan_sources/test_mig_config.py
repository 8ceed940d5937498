"""mig-manager's label, from the Node to the GPUs, and the label with the state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.plan_sources.mig_config.source import (
    SOURCE,
    STATE,
    MigConfigSource,
    MigState,
    state_of,
)
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG, DeferredMigConfig
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, blocking_codes
from nodeagent.views.shapes import Refused
from tests.cluster.node_rig import Home, at_home, view_of

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
        (blocked(Code.RESET_REQUIRED), MigState.FAILED),
        (blocked(Code.IN_USE, Code.RESET_REQUIRED), MigState.FAILED),
        (replace(IN_SYNC, phase=Phase.FAILED), MigState.FAILED),
        (replace(IN_SYNC, phase=Phase.REJECTED), MigState.FAILED),
    ]
    for node, state in cases:
        assert state_of(LABELS, node, TEXT, judged=True) is state


def test_what_is_offered_and_whether_it_was_judged() -> None:
    """A state that is not of this configuration says nothing of it, but a dead driver has failed;
    an unknown name has, and what is not known yet has not; without a name there is no state.
    """
    refused = replace(IN_SYNC, refusal=Refused(digest="sha256:0", problems=()))
    dead = replace(IN_SYNC, driver_error="no driver", rounds=0)
    cases: list[tuple[NodeState, PlanUpdate | None, bool, MigState]] = [
        (IN_SYNC, TEXT, False, MigState.PENDING),
        (refused, TEXT, False, MigState.PENDING),
        (IN_SYNC, UNKNOWN, False, MigState.PENDING),
        (IN_SYNC, UNKNOWN, True, MigState.FAILED),
        (IN_SYNC, NoPlan("not yet"), True, MigState.PENDING),
        (IN_SYNC, None, True, MigState.PENDING),
        (dead, None, False, MigState.FAILED),
    ]
    for node, offered, judged, state in cases:
        assert state_of(LABELS, node, offered, judged=judged) is state
        assert state_of({}, node, offered, judged=judged) is None


def test_what_is_asked_for() -> None:
    """The label's name, with the mounted file once it was looked at: it may define that name."""
    source = MigConfigSource(lambda _: None, rounds=lambda: 0)
    cases: list[tuple[PlanUpdate | None, object]] = [
        (None, None),
        (UNKNOWN, UNKNOWN),
        (PlanText(b"x"), DeferredMigConfig("mine", b"x")),
        (NoPlan("no file"), DeferredMigConfig("mine", None)),
    ]
    for source.file, requested in cases:
        assert source.requested(view_of(labels=LABELS)) == requested
    assert isinstance(source.requested(view_of(labels={CONFIG: ""})), NoPlan)


# --- on the Node --------------------------------------------------------------------------------

CREATE = "nvmlDeviceCreateGpuInstance*"


@asynccontextmanager
async def labelled(folder: Path, **options: Any) -> AsyncIterator[Home]:
    """A node led by its label, with the mounted file in `folder`."""

    def make(offer: Offer, rounds: Callable[[], int]) -> NodeSource:
        return MigConfigSource(
            offer, rounds=rounds, follow=partial(PlanFile, folder / "mig-parted.yaml")
        )

    async with at_home(folder, make, name=SOURCE, **options) as home:
        yield home


def states(home: Home) -> list[str | None]:
    """What the state label was, one after the other."""
    return [write.labels[STATE] for write in home.writes]


async def ask(home: Home, name: str | None, until: str) -> None:
    """Set the label, and wait until the state has this word for it."""
    before = len(home.writes)
    home.patch(labels={CONFIG: name})
    await home.rig.until(lambda: len(home.writes) > before and home.labels.get(STATE) == until)


async def test_success(tmp_path: Path) -> None:
    """pending as soon as the label is seen, success once it was read back; so again each time.
    With the configuration's label the state goes, and the layout stays.
    """
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        assert home.rig.layout() == "2g.20gb at 0; 1g.10gb at 2, 3; 3g.40gb at 4"
        await ask(home, "all-1g.10gb", "success")
        assert states(home) == ["pending", "success"] * 2
        home.patch(labels={CONFIG: None})
        await home.rig.round()
        assert STATE not in home.labels
        assert "no label" in home.rig.state.note
        assert len(home.rig.gpu().instances) == 7


async def test_failure(tmp_path: Path) -> None:
    """A step that fails is reported once, however often it is retried, and then the success."""
    async with labelled(tmp_path, retry=0.02) as home:
        home.gpus.inject(CREATE, error=999, times=2)
        await ask(home, "all-balanced", "success")
        assert states(home) == ["pending", "failed", "success"]


def test_withdrawal() -> None:
    """When another source takes over, the state goes and the configuration stays."""
    source = MigConfigSource(lambda _: None, rounds=lambda: 0)
    there = view_of(labels={CONFIG: "all-balanced", STATE: "success"})
    assert source.withdrawal(there) == Wanted(labels={STATE: None})
