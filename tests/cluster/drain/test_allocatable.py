from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain import allocatable
from nodeagent.plan.observed import Access, Gpu, MigMode
from nodeagent.structs import replace
from tests.cluster.drain.rig import AFTER, MIXED, NODE, THREE, agent, labels, offer
from tests.machine_load import until
from tests.plan.cards import card, divided, with_instances
from tests.simulated_cluster.api_server import ApiServer

CONFIG = "nvidia.com/device-plugin.config"
GPU, ONE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
H100 = card("h100-80gb")
OFF = replace(H100, mig=MigMode(current=False, pending=False))
SPLIT = with_instances(H100, [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)])
MEDIA = with_instances(H100, [("1g.10gb+me", 0)])
PARTS = divided(H100, "3g.40gb", 0, 1, 1, 1)
LOST = replace(SPLIT, access=Access.LOST)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        api.add_node(NODE, labels=MIXED)
        yield api


def test_the_strategy_is_read_from_the_labels() -> None:
    cases: list[tuple[dict[str, str], allocatable.Strategy | None]] = [
        ({allocatable.STRATEGY_LABEL: "mixed"}, allocatable.Strategy.MIXED),
        (
            {allocatable.STRATEGY_LABEL: "single", allocatable.FEATURES_LABEL: "1"},
            allocatable.Strategy.SINGLE,
        ),
        ({allocatable.FEATURES_LABEL: "1700000000"}, allocatable.Strategy.NONE),
        ({allocatable.STRATEGY_LABEL: "none"}, allocatable.Strategy.NONE),
        ({}, None),
        ({allocatable.STRATEGY_LABEL: "another", allocatable.FEATURES_LABEL: "1"}, None),
    ]
    for node_labels, strategy in cases:
        assert allocatable.strategy_of(node_labels) is strategy


def test_what_is_expected() -> None:
    """Devices as pods request them; MIG devices also where the strategy cannot offer them."""
    cases: list[tuple[allocatable.Strategy, tuple[Gpu, ...], dict[str, int]]] = [
        (allocatable.Strategy.NONE, (OFF, card("t4")), {GPU: 2}),
        (allocatable.Strategy.NONE, (SPLIT,), {ONE: 2, THREE: 1}),
        (allocatable.Strategy.SINGLE, (AFTER, AFTER), {GPU: 4}),
        (allocatable.Strategy.MIXED, (SPLIT, OFF), {GPU: 1, ONE: 2, THREE: 1}),
        (allocatable.Strategy.MIXED, (MEDIA,), {"nvidia.com/mig-1g.10gb.me": 1}),
        (allocatable.Strategy.MIXED, (PARTS,), {"nvidia.com/mig-1c.3g.40gb": 3}),
        (allocatable.Strategy.MIXED, (OFF, LOST), {GPU: 1}),
        (allocatable.Strategy.MIXED, (), {}),
    ]
    for strategy, gpus, counts in cases:
        assert allocatable.devices_by_resource(strategy, gpus) == counts


async def test_which_labels_count() -> None:
    """Those of the last look at the GPUs with the configuration of now, unless devices are shared;
    without any, nothing is awaited.
    """
    other, later = {**MIXED, CONFIG: "two"}, {allocatable.FEATURES_LABEL: "2"}
    cases: list[tuple[list[dict[str, str]], bool]] = [
        ([{}], False),
        ([MIXED], True),
        ([MIXED, {}], True),
        ([{**MIXED, allocatable.SHARING_LABEL: "none"}], True),
        ([{**MIXED, allocatable.SHARING_LABEL: "mps"}], False),
        ([MIXED, other], False),
        ([MIXED, {CONFIG: "two"}], False),
        ([MIXED, other, {**other, **later}], True),
        ([MIXED, other, {**other, **later, allocatable.SHARING_LABEL: "mps"}], False),
        ([MIXED, other, MIXED], True),
    ]
    for seen, is_awaited in cases:
        awaited = allocatable.AwaitedAllocatable(60.0, ("-l app=plugin",), False, lambda _: None)
        for node_labels in seen:
            awaited.observe(NodeView(labels=node_labels))
        awaited.begin((AFTER,))
        assert awaited.is_awaited is is_awaited, seen
        awaited.forget()


def test_a_mismatch_is_worded() -> None:
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({ONE: "2", THREE: "1", GPU: "0", "cpu": "8", "nvidia.com/gpumem": "7"}, []),
        ({ONE: "1", THREE: "1"}, [f"offers 1 {ONE} where it should offer 2"]),
        ({ONE: "2"}, [f"offers 0 {THREE} where it should offer 1"]),
        ({ONE: "2", THREE: "1", GPU: "1"}, [f"offers 1 {GPU} where it should offer none"]),
        (
            {"nvidia.com/mig-7g.80gb": "1"},
            [f"0 {ONE}", f"0 {THREE}", "1 nvidia.com/mig-7g.80gb where it should offer none"],
        ),
        ({ONE: "2k", THREE: "1"}, [f"offers 2k {ONE}"]),
    ]
    for counts, words in cases:
        problems = allocatable.mismatches(
            {ONE: 2, THREE: 1},
            counts,
            possible=True,
            restarted=True,
            plugin=("-A -l app=plugin",),
        )
        assert len(problems) == len(words)
        for problem, part in zip(problems, words, strict=True):
            assert part in problem.message
            assert "pods -A -l app=plugin`" in problem.remedy


# --- in an agent ----------------------------------------------------------------------------------


async def test_undescribed_configurations_are_not_judged(server: ApiServer, tmp_path: Path) -> None:
    async with agent(server, tmp_path) as it:
        assert await it.round(config="other") == ()
        await until(lambda: labels(server, CONFIG).get(CONFIG) == "other")
        assert it.around.problems == ()


async def test_reported_labels_are_remembered(server: ApiServer, tmp_path: Path) -> None:
    async with agent(server, tmp_path) as it:
        server.patch_node(NODE, {"metadata": {"labels": dict.fromkeys(MIXED)}})
        offer(server, **{"mig-7g.80gb": "1"})
        await it.round(AFTER, AFTER)
        assert await it.round() == ()
        await until(lambda: it.codes() == ["NotOffered", "NotOffered"])
