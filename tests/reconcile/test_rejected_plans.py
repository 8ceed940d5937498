"""Plans that are refused, missing or lost: the last good one stays in force and survives."""

import stat
from pathlib import Path

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.plan.numbers import NumberedGpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_update import (
    FILE_NAME,
    KeptPlan,
    NoPlan,
    PlanText,
    UnreadablePlan,
    last_good_plan,
)
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase
from tests.rig import Rig, destruction, do, on_node, plan_text, running


@pytest.mark.parametrize(
    ("bad", "code"),
    [(b"version: v1\ngpus: [", Code.SYNTAX), (plan_text("{1g.10gb: 8}"), Code.DOES_NOT_FIT)],
)
async def test_a_rejected_plan_leaves_the_last_good_one_in_force(
    tmp_path: Path, bad: bytes, code: Code
) -> None:
    async with on_node(Rig(tmp_path)) as (rig, _):
        await rig.reach("{1g.10gb: 2, 3g.40gb: 1}")
        good, layout = rig.state.digest, rig.layout()
        await rig.reach(bad, Phase.REJECTED)
        assert code in rig.codes
        assert rig.state.digest == good
        assert rig.state.refusal
        assert rig.state.refusal.digest not in ("", good)
        await do(destruction(rig.gpu()))
        await rig.round()
        assert rig.layout() == layout
        assert rig.state.phase is Phase.REJECTED
        await rig.reach("{1g.10gb: 2, 3g.40gb: 1}")
        assert rig.reported(EventType.PLAN_REJECTED) == [EventType.PLAN_REJECTED]


async def test_rejected_with_nothing_in_force_touches_nothing(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, _):
        await rig.reach("{1g.10gb: 99}", Phase.REJECTED)
        assert rig.layout() == "MIG off"
        assert rig.state.digest == ""
        assert "no plan is in force" in rig.events.events[0].message


async def test_an_unreadable_carrier_is_a_rejection(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path)) as (rig, _):
        rig.plan.offer(UnreadablePlan(Problem(code=Code.SYNTAX, message="it cannot be read")))
        await rig.settle(Phase.REJECTED)
        assert rig.state.problems[0].message == "it cannot be read"


@pytest.mark.parametrize("later", [PlanText(b"version: v2"), NoPlan("it is gone")])
async def test_after_a_restart_the_last_good_plan_holds(
    tmp_path: Path, later: PlanText | NoPlan
) -> None:
    with simulated("h100-80gb:1") as node:
        async with running(Rig(tmp_path)) as rig:
            await rig.reach("{1g.10gb: 2, 3g.40gb: 1}")
            layout, digest = rig.layout(), rig.state.digest
        node.reboot()
        async with running(Rig(tmp_path)) as rig:
            rig.plan.offer(later)
            gone = isinstance(later, NoPlan)
            await rig.settle(Phase.IN_SYNC if gone else Phase.REJECTED)
            assert (rig.layout(), rig.state.digest) == (layout, digest)
            if gone:
                assert rig.state.note == "it is gone; the last good plan stays in force"


async def test_a_damaged_last_good_plan_is_reported_and_not_used(tmp_path: Path) -> None:
    (tmp_path / "last-good-plan").write_text("{")
    async with on_node(Rig(tmp_path)) as (rig, _):
        rig.plan.offer(NoPlan("no plan"))
        await rig.settle(Phase.NO_PLAN)
        assert rig.layout() == "MIG off"
        assert "last-good-plan cannot be used" in rig.events.events[0].message


async def test_a_plan_that_could_not_be_kept_is_kept_later(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.touch()
    async with on_node(Rig(folder)) as (rig, _):
        await rig.reach("{1g.10gb: 7}")
        await rig.round()
        assert sum("cannot be kept" in event.message for event in rig.events.events) == 1
        folder.unlink()
        await rig.round()
        kept = last_good_plan(folder / FILE_NAME).load()
        assert kept is not None
        assert kept.plan == PlanText(plan_text("{1g.10gb: 7}"))


GPUS = (NumberedGpu(0, "GPU-0", "00000000:1A:00.0"), NumberedGpu(1, "GPU-1", "00000000:1B:00.0"))
PLAN = KeptPlan(PlanText(b"version: v1\n\xff", "balanced"), GPUS)


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    last_good_plan(tmp_path / "new" / FILE_NAME).save(PLAN)
    assert last_good_plan(tmp_path / "new" / FILE_NAME).load() == PLAN
    assert stat.S_IMODE((tmp_path / "new" / FILE_NAME).stat().st_mode) == 0o600


def test_people_can_read_it(tmp_path: Path) -> None:
    text = b"version: v1\ngpus: [{devices: [0], mig: enabled}]\n"
    last_good_plan(tmp_path / FILE_NAME).save(KeptPlan(PlanText(text), GPUS))
    assert read_document((tmp_path / FILE_NAME).read_bytes()).entries == read_document(text).entries
