import json
from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.plan_sources.nos.grammar import STATUS_PLAN
from nodeagent.cluster.plan_sources.nos.source import NosSource
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan
from nodeagent.plan.planner import plan
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate
from nodeagent.views.node_state import NodeState, Phase
from tests.cluster.plan_sources.nos import rig


def _view(annotations: Mapping[str, str], labels: Mapping[str, str]) -> NodeView:
    return NodeView(annotations=annotations, labels=labels)


# --- in conversation ------------------------------------------------------------------------------


def test_exchange() -> None:
    """Each recorded step is asked for and answered so, and none is answered before its time."""
    labels: dict[str, str] = rig.EXCHANGE["labels"]
    annotations: dict[str, str] = {"example.com/other": "stays"}
    offers: list[Any] = []
    rounds = 0
    before: tuple[NodeState, PlanUpdate | None] = (NodeState("n", "nos"), None)
    source = NosSource(offers.append, rounds=lambda: rounds)
    for step in rig.EXCHANGE["steps"]:
        annotations = rig.patched(annotations, step["partitioner"])
        view, known = _view(annotations, labels), len(offers)
        source.observe(view)
        if len(offers) > known:
            early = source.answer(view, *before).annotations
            assert STATUS_PLAN not in early, step["what"]
        rounds += 1
        offered = offers[-1].on(rig.TWO)
        assert isinstance(offered, PlanText)
        if step.get("plan") is not None:
            assert json.loads(offered.text) == step["plan"], step["what"]
        observed = rig.seen(step["node"]["gpus"], rig.TWO)
        assert offers[-1].on(observed) == offered, "whatever the GPUs hold"
        verdict = plan(rig.desired(offered, observed), observed).verdict
        assert verdict == step["verdict"], step["what"]
        phase = Phase(step["node"]["phase"])
        before = (rig.state(observed, offered, phase, rounds=rounds), offered)
        answer = source.answer(view, *before)
        assert answer.labels == {}
        patch = {k: v for k, v in answer.annotations.items() if annotations.get(k) != v}
        assert patch == step["agent"], step["what"]
        annotations = rig.patched(annotations, patch)
    assert annotations["example.com/other"] == "stays"


# --- what is ignored --------------------------------------------------------------------------


def test_what_is_ignored_is_logged() -> None:
    """Once for each demand."""
    source = NosSource(lambda _: None, rounds=lambda: 0)
    view = _view(rig.spec(**{"0-7g.40gb": "1", "1-1g.10gb-me": "1"}), rig.MIG)
    clean = _view(rig.spec(**{"0-7g.40gb": "1"}), rig.MIG)
    for demand, count in ((view, 1), (view, 0), (clean, 0), (view, 1)):
        with capture_logs() as lines:
            source.observe(demand)
        assert len(lines) == count
        assert all("its profile has a -" in line["event"] for line in lines)


# --- the Node -----------------------------------------------------------------------------------


def test_no_node() -> None:
    """Without a Node there is no plan; when it is back, it is asked again."""
    offers: list[Any] = []
    source = NosSource(offers.append, rounds=lambda: 0)
    view = _view(rig.spec(**{"0-7g.40gb": "1"}), rig.MIG)
    for one in (view, None, None, view):
        source.observe(one)
    assert [type(one) for one in offers] == [DeferredNosPlan, NoPlan, DeferredNosPlan]
