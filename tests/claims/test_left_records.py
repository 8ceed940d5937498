"""What claims have stays where none are served, such as with `dra.mode: off`."""

from __future__ import annotations

import pytest

from nodeagent.claims.records import LeftRecords
from nodeagent.gpu.kernel import boot_id
from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode
from nodeagent.views.node_state import Phase
from tests.claims.machine import UIDS, Home, laid_out, pool_of
from tests.rig import Rig, running

SLICE = "mig-1g-10gb-2"


async def prepared(node: SimulatedNode, home: Home, *, boot: str) -> None:
    """An agent of that start of the machine has made a slice; nothing runs on it."""
    home.boot_id = boot
    async with home.core() as (claims, _):
        await claims.prepare(*home.claim(0, (pool_of(node), SLICE)))


async def test_an_agent_that_serves_no_claims(node: SimulatedNode, home: Home) -> None:
    """A plan that needs the place waits and names the claim; one that fits beside it is done."""
    await prepared(node, home, boot=boot_id())
    kept = LeftRecords.read(home.records_dir)
    [problem] = kept.problems
    assert (problem.code, problem.message) == (
        Code.IN_USE,
        "claims are not served (dra.mode), and what these have is kept: claim team/trainer-0",
    )
    rig = Rig(home.folder, beside=kept.beside)
    async with running(rig):
        rig.offer("{7g.80gb: 1}")
        await rig.settle(Phase.BLOCKED)
        assert "claim team/trainer-0" in rig.state.problems[0].message
        assert [laid_out(node, gpu) for gpu in range(2)] == [[(2, 1)], [(0, 8)]]
        rig.offer("{3g.40gb: 1}")
        await rig.settle(Phase.IN_SYNC)
        assert laid_out(node) == [(2, 1), (4, 4)]


@pytest.mark.parametrize("content", [None, "{}", "newer"])
async def test_records_of_another_start_and_unreadable_ones(
    node: SimulatedNode, home: Home, content: str | None
) -> None:
    """What was made before a reboot is gone; a record that cannot be used holds back its GPUs."""
    await prepared(node, home, boot="first")
    if content:
        (home.records_dir / f"{UIDS[0]}.json").write_text(content)
    left = LeftRecords.read(home.records_dir)
    assert [problem.code for problem in left.problems] == [Code.STATE_FILE] * bool(content)
    rig = Rig(home.folder, beside=left.beside)
    async with running(rig):
        rig.offer("{7g.80gb: 1}")
        await rig.settle(Phase.BLOCKED if content else Phase.IN_SYNC)
        assert laid_out(node) == ([(2, 1)] if content else [(0, 8)])
