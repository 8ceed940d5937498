"""The node label of mig-manager, from the label to the GPUs and back to the other label."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.plan_sources.mig_config.source import SOURCE, STATE, MigConfigSource
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase
from tests.cluster.node_rig import Home, at_home, view_of
from tests.machine_load import stretched

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
