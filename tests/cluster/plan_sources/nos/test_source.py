import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.plan_sources.nos.grammar import CONFIGURATION_LABEL, STATUS_PLAN
from nodeagent.cluster.plan_sources.nos.source import (
    NosConfiguration,
    NosSource,
    ReadIntervals,
    Trouble,
)
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan
from nodeagent.errors import UsageError
from nodeagent.plan.planner import plan
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.views.node_state import NodeState, Phase
from tests.cluster.client.rig import running, until
from tests.cluster.plan_sources.nos.rig import (
    EXCHANGES,
    MIG,
    MPS,
    TWO,
    bare_node,
    desired,
    patched,
    seen,
    spec,
    state,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Reset

WHERE = ("nebuly-nvidia", "nos-device-plugin-configs")
PLACE = "/".join(WHERE)


def meant(asked: Any, observed: Any) -> PlanUpdate:
    found: PlanUpdate = asked.on(observed) if isinstance(asked, DeferredNosPlan) else asked
    return found


def _view(annotations: Mapping[str, str], labels: Mapping[str, str]) -> NodeView:
    return NodeView(annotations=annotations, labels=labels)


def _more(offers: list[Any], known: int) -> bool:
    return len(offers) > known


# --- in conversation ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mig", "mps"])
async def test_exchange(mode: str, server: ApiServer, access: ClusterAccess) -> None:
    """Each recorded step is asked for and answered so, and none is answered before its time."""
    exchange, bare = EXCHANGES[mode], bare_node(mode)
    labels: dict[str, str] = exchange["labels"]
    annotations: dict[str, str] = {"example.com/other": "stays"}
    offers: list[Any] = []
    rounds = 0
    before: tuple[NodeState, PlanUpdate | None] = (NodeState("n", "nos"), None)
    source = NosSource(
        offers.append, access, PLACE, rounds=lambda: rounds, intervals=ReadIntervals(interval=0.0)
    )
    async with running(source.run()):
        for step in exchange["steps"]:
            annotations = patched(annotations, step["partitioner"])
            labels = {**labels, **step.get("labels", {})}
            if "configuration" in step:
                key = labels[CONFIGURATION_LABEL]
                server.put_config_map(*WHERE, {key: step["configuration"]})
            view, known = _view(annotations, labels), len(offers)
            source.observe(view)
            if "configuration" in step:
                await until(partial(_more, offers, known))
            if len(offers) > known:
                early = source.answer(view, *before).annotations
                assert STATUS_PLAN not in early, step["what"]
            rounds += 1
            offered = meant(offers[-1], bare)
            if step.get("plan") is not None:
                assert isinstance(offered, PlanText)
                assert json.loads(offered.text) == step["plan"], step["what"]
            observed, daemons = seen(step["node"]["gpus"], offered, bare)
            assert meant(offers[-1], observed) == offered, "whatever the GPUs hold"
            if step.get("verdict"):
                assert isinstance(offered, PlanText)
                verdict = plan(desired(offered, observed), observed).verdict
                assert verdict == step["verdict"], step["what"]
            phase = Phase(step["node"]["phase"])
            before = (state(observed, offered, phase, mps=daemons, rounds=rounds), offered)
            answer = source.answer(view, *before)
            assert answer.labels == {}
            patch = {k: v for k, v in answer.annotations.items() if annotations.get(k) != v}
            assert patch == step["agent"], step["what"]
            annotations = patched(annotations, patch)
    assert annotations["example.com/other"] == "stays"


# --- what is ignored --------------------------------------------------------------------------


async def test_what_is_ignored_is_logged(access: ClusterAccess) -> None:
    """Once for each demand."""
    source = NosSource(lambda _: None, access, None, rounds=lambda: 0)
    view = _view(spec(**{"0-7g.40gb": "1", "1-1g.10gb-me": "1"}), MIG)
    clean = _view(spec(**{"0-7g.40gb": "1"}), MIG)
    for demand, count in ((view, 1), (view, 0), (clean, 0), (view, 1)):
        with capture_logs() as lines:
            source.observe(demand)
        assert len(lines) == count
        assert all("its profile has a -" in line["event"] for line in lines)


# --- the ConfigMap --------------------------------------------------------------------------------


async def test_nothing_is_asked_for_while_the_configuration_is_read(
    server: ApiServer, access: ClusterAccess
) -> None:
    offers: list[Any] = []
    source = NosSource(offers.append, access, PLACE, rounds=lambda: 0)
    source.observe(_view(spec(**{"0-7g.40gb": "1"}), {**MPS, CONFIGURATION_LABEL: "a"}))
    assert offers == []
    async with running(source.run()):
        await until(lambda: offers)
    (trouble,) = offers
    assert isinstance(trouble, UnreadablePlan)
    assert len([r for r in server.requests if "configmaps" in r.path]) == 1


@pytest.mark.parametrize("labels", [MIG, {}, MPS, {**MPS, CONFIGURATION_LABEL: ""}])
async def test_no_request(server: ApiServer, access: ClusterAccess, labels: dict[str, str]) -> None:
    offers: list[Any] = []
    source = NosSource(offers.append, access, PLACE, rounds=lambda: 0)
    key = {} if labels.items() >= MPS.items() else {CONFIGURATION_LABEL: "shared-4"}
    async with running(source.run()):
        source.observe(_view({}, {**labels, **key}))
        await asyncio.sleep(0.02)
    assert isinstance(meant(offers[0], TWO), NoPlan)
    assert server.requests == []


async def test_a_key_without_a_config_map(access: ClusterAccess) -> None:
    offers: list[Any] = []
    source = NosSource(offers.append, access, None, rounds=lambda: 0)
    labels = {**MPS, CONFIGURATION_LABEL: "node-a-1"}
    source.observe(_view({}, labels))
    assert "kubernetes.nos_config_map" in offers[0].reason
    source.observe(_view(spec(**{"0-10gb": "2"}), labels))
    assert isinstance(meant(offers[1], TWO), PlanText)


# --- the Node -----------------------------------------------------------------------------------


async def test_no_node(access: ClusterAccess) -> None:
    """Without a Node there is no plan; when it is back, it is asked again."""
    offers: list[Any] = []
    source = NosSource(offers.append, access, None, rounds=lambda: 0)
    view = _view(spec(**{"0-7g.40gb": "1"}), MIG)
    for one in (view, None, None, view):
        source.observe(one)
    assert [type(one) for one in offers] == [DeferredNosPlan, NoPlan, DeferredNosPlan]


# --- the key of the ConfigMap that the label names ----------------------------------------------

PATH = "/api/v1/namespaces/nebuly-nvidia/configmaps/nos-device-plugin-configs"
QUICK = ReadIntervals(interval=0.02, retry=(0.02, 0.04))


@dataclass
class Reader:
    """A reader that is running, with what it reported: a text, or trouble."""

    server: ApiServer
    configuration: NosConfiguration
    reported: list[str | Trouble | None] = field(default_factory=list)

    def put(self, **texts: str) -> None:
        data = {key.replace("_", "-"): text for key, text in texts.items()}
        self.server.put_config_map(*WHERE, data)

    @property
    def asked(self) -> int:
        return len([r for r in self.server.requests if r.path == PATH])


@pytest.fixture
async def reader(server: ApiServer, access: ClusterAccess) -> AsyncIterator[Reader]:
    def changed() -> None:
        made.reported.append(made.configuration.found)

    made = Reader(
        server, NosConfiguration(access, PLACE, changed, intervals=QUICK, jitter=lambda: 0.01)
    )
    async with running(made.configuration.run()):
        yield made


async def test_a_key_is_read_once(reader: Reader) -> None:
    reader.put(a="one", b="two")
    reader.configuration.want(None)
    reader.configuration.want("a")
    await until(lambda: reader.reported == ["one"])
    reader.configuration.want("a")
    for key in ["a", "b"] * 50:
        reader.configuration.want(key)
    assert reader.configuration.found is None  # what was under another key is not it
    await until(lambda: reader.reported == ["one", "two"])
    reader.configuration.want(None)
    assert reader.configuration.found is None
    assert reader.asked == 2


@pytest.mark.parametrize("there", [None, {}, {"other": "x"}])
async def test_what_is_missing_is_read_again(reader: Reader, there: dict[str, str] | None) -> None:
    if there is not None:
        reader.put(**there)
    reader.configuration.want("node-a-1")
    await until(lambda: reader.asked >= 3)
    (trouble,) = reader.reported
    assert isinstance(trouble, UnreadablePlan)
    assert '"node-a-1"' in trouble.problem.message
    assert PLACE in trouble.problem.message
    reader.put(node_a_1="text")
    await until(lambda: reader.reported[1:] == ["text"])


@pytest.mark.parametrize(
    ("fault", "kind"), [(Answer(403), UnreadablePlan), (Answer(500), NoPlan), (Reset(), NoPlan)]
)
async def test_faults(reader: Reader, fault: Answer | Reset, kind: type) -> None:
    """What a person has to mend is a refusal that says so; what passes leaves the plan in force."""
    reader.server.faults.next(2, fault, path=PATH)
    reader.put(a="text")
    reader.configuration.want("a")
    await until(lambda: "text" in reader.reported)
    first, *_ = reader.reported
    assert type(first) is kind
    assert f"{PLACE}, which cannot be read" in str(first)
    assert not isinstance(first, UnreadablePlan) or first.problem.remedy
    assert reader.asked == 3


@pytest.mark.parametrize("place", ["name", "/name", "namespace/", "a/b/c"])
def test_no_place(access: ClusterAccess, place: str) -> None:
    """A setting that names no ConfigMap is refused with what would be right."""
    with pytest.raises(UsageError, match="NAMESPACE/NAME"):
        NosConfiguration(access, place, lambda: None)
