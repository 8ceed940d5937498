"""The loop in its hooks: what objects, what has to be made ready, what is put back."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.change_hooks import ChangeHooks
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate
from nodeagent.simulation import simulated
from nodeagent.simulation.state_file import STATE_VARIABLE
from nodeagent.views.node_state import Phase
from tests.rig import Rig, on_node, plan_text, running

OBJECTION = Problem(code=Code.IN_USE, message="another program splits these GPUs", remedy="end it")


class Recorded(ChangeHooks):
    """ChangeHooks that answer as they are set to and remember what they were asked."""

    problems: tuple[Problem, ...] = ()

    def __init__(self) -> None:
        self.objecting: tuple[Problem, ...] = ()
        self.refusing: tuple[Problem, ...] = ()
        self.ready = asyncio.Event()
        self.ready.set()
        self.asked: list[str] = []
        self.prepared: list[NodePlan] = []
        self.observed = ObservedNode()

    async def objections(
        self, evaluation: PlanEvaluation, todo: NodePlan, observed: ObservedNode
    ) -> tuple[Problem, ...]:
        return self.objecting

    async def prepare(self, todo: NodePlan) -> tuple[Problem, ...]:
        self.asked.append("prepare")
        self.prepared.append(todo)
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.asked.append("given up")
            raise
        return self.refusing

    def after_round(
        self,
        evaluation: PlanEvaluation,
        observed: ObservedNode,
        postponed: frozenset[str] = frozenset(),
        looked_at: datetime | None = None,
    ) -> None:
        self.asked.append("after_round")
        self.observed = observed


async def test_is_asked_before_and_notified_after(tmp_path: Path) -> None:
    around = Recorded()
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, _):
        await rig.reach("{1g.10gb: 7}")
        await rig.round()
        assert around.asked[:3] == ["prepare", "after_round", "after_round"]
        assert len(around.prepared[0].gpus[0].steps) >= 7


async def test_nothing_is_changed_against_an_objection(tmp_path: Path) -> None:
    around = Recorded()
    around.objecting = (OBJECTION,)
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, _):
        await rig.reach("{1g.10gb: 7}", Phase.BLOCKED)
        await rig.round()
        assert rig.layout() == "MIG off"
        assert OBJECTION in rig.state.problems
        assert rig.reported(EventType.BLOCKED) == [EventType.BLOCKED]
        assert "prepare" not in around.asked
        around.objecting = ()
        rig.control.wake("no objections")
        await rig.settle(Phase.IN_SYNC)


async def test_what_is_not_ready_is_not_changed(tmp_path: Path) -> None:
    around = Recorded()
    around.refusing = (OBJECTION,)
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, _):
        await rig.reach("{1g.10gb: 7}", Phase.BLOCKED)
        await rig.until(lambda: "after_round" in around.asked)
        assert rig.layout() == "MIG off"
        assert around.asked[:2] == ["prepare", "after_round"]


async def test_gpus_of_which_no_hook_is_notified_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one GPU's change cannot be prepared, another's time slice is set all the same."""
    around = Recorded()
    around.refusing = (OBJECTION,)
    state = tmp_path / "node.json"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    with simulated("h100-80gb:2", state=state) as node:
        async with running(Rig(tmp_path, hooks=around)) as rig:
            rig.offer(plan_text("{1g.10gb: 7}", "[0]") + b"- {devices: [1], timeSlice: long}\n")
            await rig.until(lambda: OBJECTION in rig.state.problems)
            await rig.until(lambda: "after_round" in around.asked)
            assert rig.layout(0) == "MIG off"
        assert [node.card(i).state.time_slice for i in (0, 1)] == [0, 3]


async def test_a_new_plan_ends_the_waiting(tmp_path: Path) -> None:
    around = Recorded()
    around.ready.clear()
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, _):
        rig.offer("{1g.10gb: 7}")
        await rig.until(lambda: around.asked == ["prepare"])
        around.ready.set()
        around.ready = asyncio.Event()
        around.ready.set()
        await rig.reach("{7g.80gb: 1}")
        assert rig.layout() == "7g.80gb at 0"


async def test_the_end_of_the_agent_ends_the_waiting(tmp_path: Path) -> None:
    around = Recorded()
    around.ready.clear()
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path, hooks=around)) as rig:
            rig.offer("{1g.10gb: 7}")
            await rig.until(lambda: around.asked == ["prepare"])
        assert around.asked == ["prepare", "given up", "after_round"]


async def test_their_problems_are_the_nodes(tmp_path: Path) -> None:
    around = Recorded()
    around.problems = (Problem(code=Code.STEP_FAILED, message="the node offers too little"),)
    async with on_node(Rig(tmp_path, hooks=around)) as (rig, _):
        await rig.reach("{1g.10gb: 7}", Phase.FAILED)
        assert rig.state.problems == around.problems


# --- demands --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneEach:
    profile: str

    def on(self, observed: ObservedNode) -> PlanUpdate:
        if not observed.gpus:
            return NoPlan("there is no GPU")
        return PlanText(plan_text(f"{{{self.profile}: {len(observed.gpus)}}}"))


async def test_a_demand_is_made_a_plan_by_what_is_there(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path), "h100-80gb:2") as (rig, _):
        rig.plan.offer(OneEach("1g.10gb"))
        await rig.settle(Phase.IN_SYNC)
        assert [len(gpu.instances) for gpu in rig.state.observed.gpus] == [2, 2]
        assert rig.plan.offered == PlanText(plan_text("{1g.10gb: 2}"))
        await rig.rest()
        rounds = rig.state.rounds
        rig.plan.offer(OneEach("1g.10gb"))
        await asyncio.sleep(0.05)
        assert rig.state.rounds == rounds  # the same is nothing new
        rig.plan.offer(OneEach("9g.90gb"))
        await rig.settle(Phase.REJECTED)
