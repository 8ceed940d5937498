"""mig-manager's label, from the Node to the GPUs, and the label with the state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.plan_sources.mig_config.source import (
    SOURCE,
    STATE,
    MigConfigSource,
    MigState,
    state_of,
)
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.simulation import simulated
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, blocking_codes
from nodeagent.views.shapes import Refused
from tests.cluster.node_rig import Home, at_home, view_of
from tests.machine_load import stretched

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


# --- on the Node --------------------------------------------------------------------------------

CREATE = "nvmlDeviceCreateGpuInstance*"
MINE = """\
version: v1
mig-configs:
  mine:
  - {devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 1}}
  all-balanced:
  - {devices: all, mig-enabled: true, mig-devices: {"7g.80gb": 1}}
"""


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
    """pending as soon as the label is seen, success once it was read back; so again each time."""
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        assert home.rig.layout() == "2g.20gb at 0; 1g.10gb at 2, 3; 3g.40gb at 4"
        await ask(home, "all-1g.10gb", "success")
        assert states(home) == ["pending", "success"] * 2
        assert len(home.rig.gpu().instances) == 7


async def test_failure(tmp_path: Path) -> None:
    """A step that fails is reported once, however often it is retried, and then the success."""
    async with labelled(tmp_path, retry=0.02) as home:
        home.gpus.inject(CREATE, error=999, times=2)
        await ask(home, "all-balanced", "success")
        assert states(home) == ["pending", "failed", "success"]


async def test_an_unknown_name(tmp_path: Path) -> None:
    """failed, the GPUs as they were, the reason with the nearest name; then a good name is done."""
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        before = home.rig.layout()
        await ask(home, "all-balansed", "failed")
        assert home.rig.layout() == before
        (problem,) = home.rig.state.problems
        assert "did you mean all-balanced" in problem.remedy
        await ask(home, "all-3g.40gb", "success")
        assert states(home) == ["pending", "success", "pending", "failed", "pending", "success"]


async def test_a_crash_in_the_middle(tmp_path: Path) -> None:
    """The next process believes neither pending nor success; it looks, finishes, and says so."""
    with simulated("h100-80gb:1") as node:
        node.inject(CREATE, delay=0.1, times=None)
        async with labelled(tmp_path, gpus=node) as home:
            home.patch(labels={CONFIG: "all-1g.10gb"})
            await home.rig.until(lambda: home.rig.state.phase is Phase.WORKING)
        left = home.view
        assert left is not None
        assert left.labels[STATE] == "pending"
        node.clear_faults()
        async with labelled(tmp_path, gpus=node) as after:
            after.there(view_of(labels={**left.labels, STATE: "success"}))
            await after.rig.until(lambda: after.labels[STATE] == "success" and after.writes != [])
            await after.rig.until(lambda: states(after) == ["pending", "success"])
            assert len(after.rig.gpu().instances) == 7


async def test_the_mounted_file_counts_and_is_followed(tmp_path: Path) -> None:
    """Its configuration is taken before the generated one of that name, and a change acts."""
    file = tmp_path / "mig-parted.yaml"
    file.write_text(MINE)
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        assert home.rig.layout() == "7g.80gb at 0"
        await ask(home, "mine", "success")
        assert home.rig.layout() == "3g.40gb at 4"
        new = tmp_path / "new"
        new.write_text(MINE.replace("3g.40gb", "4g.40gb"))
        new.replace(file)
        await home.rig.until(lambda: states(home)[4:] == ["pending", "success"])
        assert home.rig.layout() == "4g.40gb at 0"


async def test_flipping_the_label_says_nothing_untrue(tmp_path: Path) -> None:
    """Ten changes before the agent looks are one pending, and success is that of the last."""
    async with labelled(tmp_path) as home:
        for name in ["all-balanced", "all-1g.10gb"] * 5:
            home.patch(labels={CONFIG: name})
        await home.rig.until(lambda: home.labels.get(STATE) == "success")
        assert states(home) == ["pending", "success"]
        assert len(home.rig.gpu().instances) == 7


async def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    """A fault of the file gives failed and is reported with its place, and nothing is touched."""
    (tmp_path / "mig-parted.yaml").write_text(MINE.replace('"3g.40gb": 1', '"3g.40gb": 9'))
    async with labelled(tmp_path) as home:
        await ask(home, "mine", "failed")
        assert home.rig.layout() == "MIG off"


async def test_the_label_goes(tmp_path: Path) -> None:
    """With the configuration the state goes; the layout stays in force."""
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        home.patch(labels={CONFIG: None})
        assert STATE not in home.labels
        await home.rig.round()
        assert STATE not in home.labels
        assert "no label" in home.rig.state.note
        assert len(home.rig.gpu().instances) == 4


async def test_nothing_is_asked_for_before_the_file_was_looked_at(tmp_path: Path) -> None:
    """What is generated under a name of the file's might be something else."""
    offers: list[object] = []
    source = MigConfigSource(
        offers.append, rounds=lambda: 0, follow=partial(PlanFile, tmp_path / "none.yaml")
    )
    source.observe(view_of(labels={CONFIG: "all-balanced"}))
    assert offers == []
    following = asyncio.create_task(source.run())
    async with asyncio.timeout(stretched(30)):
        while not offers:
            await asyncio.sleep(0.002)
    following.cancel()
    source.observe(None)
    assert len(offers) == 2


@pytest.mark.parametrize("other", [{"kubernetes.io/hostname": "n"}, {STATE: "success"}])
async def test_other_labels_are_no_change(tmp_path: Path, other: dict[str, str]) -> None:
    """Neither another program's label nor our own state is another demand."""
    async with labelled(tmp_path) as home:
        await ask(home, "all-balanced", "success")
        await home.rig.rest()
        rounds = home.rig.state.rounds
        home.patch(labels=other)
        assert home.labels[STATE] == "success"
        await asyncio.sleep(0.02)
        assert home.rig.state.rounds == rounds


def test_withdrawal() -> None:
    """When another source takes over, the state goes and the configuration stays."""
    source = MigConfigSource(lambda _: None, rounds=lambda: 0)
    there = view_of(labels={CONFIG: "all-balanced", STATE: "success"})
    assert source.withdrawal(there) == Wanted(labels={STATE: None})
