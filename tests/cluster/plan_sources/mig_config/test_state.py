"""The state label: each value when it is right, and the sequences that people see."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import pytest

from nodeagent.cluster.plan_sources.mig_config.source import SOURCE, STATE, MigState, state_of
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG, DeferredMigConfig
from nodeagent.documents.reading import digest_of
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import NodePlan, Policy, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import after
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.loop_control import LoopControl
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, blocking_codes, phase_of
from nodeagent.views.shapes import Refused
from tests.plan.cards import card, with_instances

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


# --- sequences ----------------------------------------------------------------------------------


@dataclass
class Life:
    """A node that is led by its label, with the reconciler's own evaluation; steps are played.

    Every value that the label takes is noted, each once until it changes.
    """

    gpu: Gpu
    file: bytes | None = None

    def __post_init__(self) -> None:
        self.written: list[str | None] = []
        self.labels: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        """A new process: it knows the labels and the hardware, and nothing else."""
        self.plans = ActivePlan(LoopControl())
        self.offered: PlanUpdate | None = None
        self.node = NodeState("node-a", SOURCE)
        self.since = 0
        self.ask()

    def ask(self, name: str | None = None) -> None:
        """A user sets the label, or the agent reads it for the first time."""
        if name is not None:
            self.labels[CONFIG] = name
        wanted = self.labels.get(CONFIG)
        offered: PlanUpdate = NoPlan("no label")
        if wanted:
            offered = DeferredMigConfig(wanted, self.file).on(ObservedNode((self.gpu,)))
        if offered != self.offered:
            self.offered = offered
            self.plans.offer(offered)
            self.since = self.node.rounds
        self.tell()

    def tell(self) -> None:
        """Write the label as the agent would."""
        judged = self.node.rounds > self.since
        state = state_of(self.labels, self.node, self.plans.offered, judged=judged)
        wanted = None if state is None else state.value
        if wanted != self.labels.get(STATE):
            self.written.append(wanted)
            self.labels.pop(STATE, None)
            self.labels |= {STATE: wanted} if wanted else {}

    async def round(self, *, dies_after: int | None = None, fails: bool = False) -> None:
        """Observe, plan, act, observe, report."""
        await self.plans.read_offer()
        evaluation = self.plans.evaluate(ObservedNode((self.gpu,)), Policy(reset_when_idle=True))
        steps = evaluation.plan.steps if evaluation.plan else ()
        if steps:
            self._publish(Phase.WORKING, rounds=0)
            self.gpu = after(self.gpu, steps[:dies_after])
            if dies_after is not None:
                return
        if fails:
            problem = Problem(code=Code.STEP_FAILED, message="the driver refused")
            self._publish(Phase.FAILED, problem)
            return
        evaluation = self.plans.evaluate(ObservedNode((self.gpu,)), Policy(reset_when_idle=True))
        plan = evaluation.plan
        problems = tuple(p for g in plan.gpus for p in g.problems) if plan else ()
        refused = evaluation.refusal is not None
        phase = phase_of(refused=refused, plan=plan, problems=problems)
        self.node = replace(self.node, plan=plan, refusal=evaluation.refusal)
        self._publish(phase, *problems)

    def _publish(self, phase: Phase, *problems: Problem, rounds: int = 1) -> None:
        text = self.plans.text
        self.node = replace(
            self.node,
            phase=phase,
            digest=self.plans.digest,
            configuration=text.configuration if text else None,
            problems=problems,
            blocking=blocking_codes(problems),
            rounds=self.node.rounds + rounds,
        )
        self.tell()


@pytest.fixture
def life() -> Life:
    """A node with one empty H100."""
    return Life(card("h100-80gb"))


async def test_success(life: Life) -> None:
    """pending while it is done, success once it was read back, and pending again for the next."""
    life.ask("all-balanced")
    await life.round()
    life.ask("all-1g.10gb")
    await life.round()
    assert life.written == ["pending", "success", "pending", "success"]
    assert len(life.gpu.instances) == 7


async def test_failure(life: Life) -> None:
    """A step that fails is reported; when the next try succeeds, so is that."""
    life.ask("all-balanced")
    await life.round(fails=True)
    assert life.written == ["pending", "failed"]
    await life.round()
    assert life.written == ["pending", "failed", "success"]


async def test_unknown_name(life: Life) -> None:
    """failed, nothing touched, and a good name afterwards is done as if nothing was."""
    life.ask("all-balanced")
    await life.round()
    before = life.gpu
    life.ask("all-balansed")
    await life.round()
    assert life.gpu == before
    life.ask("all-2g.20gb")
    await life.round()
    assert life.written == ["pending", "success", "pending", "failed", "pending", "success"]


async def test_a_profile_that_the_card_does_not_have() -> None:
    """mig-parted would wipe the GPU and say success; here it failed and nothing was touched."""
    text = b"version: v1\nmig-configs:\n  bad:\n  - {devices: all, mig-enabled: true, "
    text += b'mig-devices: {"2g.10gb": 1}}\n'
    life = Life(with_instances(card("h100-80gb"), [("3g.40gb", 0)]), text)
    before = life.gpu
    life.ask("bad")
    await life.round()
    assert life.written == ["pending", "failed"]
    assert life.gpu == before


@pytest.mark.parametrize("cut", range(5))
async def test_a_crash_in_the_middle(life: Life, cut: int) -> None:
    """Wherever the agent dies, the next one finishes it; the label says success only then."""
    life.gpu = with_instances(life.gpu, [("7g.80gb", 0)])
    life.ask("all-balanced")
    await life.round(dies_after=cut)
    life.start()
    await life.round()
    assert life.written == ["pending", "success"]
    assert sorted(i.profile for i in life.gpu.instances) == [
        "1g.10gb",
        "1g.10gb",
        "2g.20gb",
        "3g.40gb",
    ]


async def test_an_old_success_is_not_believed(life: Life) -> None:
    """A label from before a reboot, which took the instances: it is taken back, then earned."""
    life.ask("all-balanced")
    await life.round()
    life.gpu = replace(life.gpu, instances=())
    life.start()
    await life.round()
    assert life.written == ["pending", "success", "pending", "success"]


async def test_a_client_in_the_way(life: Life) -> None:
    """pending as long as it takes, and success when they are gone."""
    life.gpu = with_instances(life.gpu, [("7g.80gb", 0)], used=[0])
    life.ask("all-balanced")
    await life.round()
    await life.round()
    assert life.written == ["pending"]
    life.gpu = with_instances(life.gpu, [("7g.80gb", 0)])
    await life.round()
    assert life.written == ["pending", "success"]


async def test_the_label_goes(life: Life) -> None:
    """Without a configuration the state goes too; what is on the hardware stays as it is."""
    life.ask("all-balanced")
    await life.round()
    kept = life.gpu
    life.ask("")
    await life.round()
    assert life.written == ["pending", "success", None]
    assert life.gpu == kept


async def test_flipping_the_label_says_nothing_untrue(life: Life) -> None:
    """Ten changes before the agent looks are one pending, and success is that of the last."""
    for name in ["all-balanced", "all-1g.10gb"] * 5:
        life.ask(name)
    await life.round()
    assert life.written == ["pending", "success"]
    assert len(life.gpu.instances) == 7
    assert [key for key, _ in groupby(life.written)] == life.written
