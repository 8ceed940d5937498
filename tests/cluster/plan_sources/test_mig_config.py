from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.mig_config.source import (
    STATE,
    MigConfigSource,
    MigState,
    state_of,
)
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG, DeferredMigConfig
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase, blocking_codes
from nodeagent.views.shapes import Refused

TEXT = PlanText(b"the file", "mine")
UNKNOWN = UnreadablePlan(Problem(code=Code.UNKNOWN_CONFIGURATION, message="no such"))
LABELS = {CONFIG: "mine"}
IN_SYNC = NodeState(
    "node-a",
    "mig-config",
    Phase.IN_SYNC,
    digest=digest_of(TEXT.text),
    configuration="mine",
    plan=NodePlan(Verdict.IN_SYNC),
    rounds=4,
)


def blocked(*codes: Code) -> NodeState:
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
    source = MigConfigSource(lambda _: None, rounds=lambda: 0)
    cases: list[tuple[PlanUpdate | None, object]] = [
        (None, None),
        (UNKNOWN, UNKNOWN),
        (PlanText(b"x"), DeferredMigConfig("mine", b"x")),
        (NoPlan("no file"), DeferredMigConfig("mine", None)),
    ]
    for source.file, requested in cases:
        assert source.requested(NodeView(labels=LABELS)) == requested
    assert isinstance(source.requested(NodeView(labels={CONFIG: ""})), NoPlan)


def test_what_people_see() -> None:
    rounds = 0
    offers: list[object] = []
    source = MigConfigSource(offers.append, rounds=lambda: rounds)
    source.file = NoPlan("no file")

    def seen(view: NodeView, *phases: Phase) -> list[str | None]:
        states = [replace(IN_SYNC, phase=phase, rounds=rounds) for phase in phases]
        return [source.answer(view, state, TEXT).labels[STATE] for state in states]

    for name in ("mine", "other"):
        view = NodeView(labels={CONFIG: name})
        for _ in range(2):
            source.observe(view)
        assert seen(view, Phase.IN_SYNC, Phase.FAILED) == ["pending", "pending"]  # of another one
        rounds += 1
        phases = (Phase.WORKING, Phase.FAILED, Phase.WORKING, Phase.IN_SYNC, Phase.WORKING)
        assert seen(view, *phases) == ["pending", "failed", "failed", "success", "pending"]
    assert offers == [DeferredMigConfig("mine", None), DeferredMigConfig("other", None)]
    nameless = NodeView(labels={STATE: "success"})
    assert source.answer(nameless, IN_SYNC, TEXT) == Wanted(labels={STATE: None})
