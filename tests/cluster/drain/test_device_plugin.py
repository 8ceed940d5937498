import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.cluster.drain.allocatable import mismatches
from nodeagent.cluster.drain.device_plugin import (
    FEATURES_LABEL,
    SHARING_LABEL,
    STRATEGY_LABEL,
    DevicePlugin,
    PluginConfiguration,
    Strategy,
    read_configuration,
    read_configuration_file,
    strategy_of,
)
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.plan.observed import Access, Gpu, MigMode
from nodeagent.plan.problems import Code
from nodeagent.structs import replace
from tests.cluster.client.rig import until
from tests.cluster.drain.rig import AFTER, MIXED, NODE, THREE, agent, labels, offer
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
SHARED = f"""
version: v1
flags: {{migStrategy: mixed}}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {{name: {THREE}, replicas: 4}}
"""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the Node, whose plugin has the strategy mixed."""
    async with ApiServer() as api:
        api.add_node(NODE, labels=MIXED)
        yield api


def test_the_strategy_is_read_from_the_labels() -> None:
    cases: list[tuple[dict[str, str], Strategy | None]] = [
        ({STRATEGY_LABEL: "mixed"}, Strategy.MIXED),
        ({STRATEGY_LABEL: "single", FEATURES_LABEL: "1"}, Strategy.SINGLE),
        ({FEATURES_LABEL: "1700000000"}, Strategy.NONE),
        ({STRATEGY_LABEL: "none"}, Strategy.NONE),
        ({}, None),
        ({STRATEGY_LABEL: "another", FEATURES_LABEL: "1"}, None),
    ]
    for node_labels, strategy in cases:
        assert strategy_of(node_labels) is strategy


def mixed(*replicas: tuple[str, int], rename: bool = False) -> PluginConfiguration:
    return PluginConfiguration(Strategy.MIXED, replicas, rename)


def test_what_is_expected() -> None:
    """Devices by the names that pods request, times their replicas, under another name where the
    file says so; MIG devices also where the strategy cannot offer them.
    """
    none, single = PluginConfiguration(Strategy.NONE), PluginConfiguration(Strategy.SINGLE)
    cases: list[tuple[PluginConfiguration, tuple[Gpu, ...], dict[str, int] | None]] = [
        (none, (OFF, card("t4")), {GPU: 2}),
        (none, (SPLIT,), {ONE: 2, THREE: 1}),
        (single, (AFTER, AFTER), {GPU: 4}),
        (mixed(), (SPLIT, OFF), {GPU: 1, ONE: 2, THREE: 1}),
        (mixed(), (MEDIA,), {"nvidia.com/mig-1g.10gb.me": 1}),
        (mixed(), (PARTS,), {"nvidia.com/mig-1c.3g.40gb": 3}),
        (mixed(), (OFF, LOST), {GPU: 1}),
        (mixed((GPU, 4)), (SPLIT, OFF, OFF), {GPU: 8, ONE: 2, THREE: 1}),
        (mixed((GPU, 4), rename=True), (OFF,), {f"{GPU}.shared": 4}),
        (mixed((ONE, 3), (GPU, 2)), (SPLIT, OFF), {GPU: 2, ONE: 6, THREE: 1}),
        (mixed((GPU, 4)), (), {}),
        (PluginConfiguration(None), (SPLIT,), None),
        (PluginConfiguration(Strategy.MIXED, None), (SPLIT,), None),
    ]
    for plugin, gpus, counts in cases:
        assert plugin.expected(gpus) == counts


def test_what_a_configuration_says() -> None:
    cases: list[tuple[str, PluginConfiguration]] = [
        ("", PluginConfiguration()),
        ("{version: v1, flags: null}", PluginConfiguration()),
        ("{sharing: {mps: {resources: []}}}", PluginConfiguration()),
        ("{flags: {migStrategy: single}}", PluginConfiguration(Strategy.SINGLE)),
        (SHARED, mixed((THREE, 4), rename=True)),
        (
            (
                "{sharing: {timeSlicing: {resources: [{name: a/b, replicas: 3}]}, "
                "mps: {resources: [{name: nvidia.com/gpu, devices: all, replicas: 2}]}}}"
            ),
            PluginConfiguration(None, ((GPU, 2),)),
        ),
        (
            "{sharing: {mps: {resources: [{name: a/b, rename: c, replicas: 3}]}}}",
            PluginConfiguration(None, None),
        ),
        (
            '{sharing: {mps: {resources: [{name: a/b, devices: ["0"], replicas: 3}]}}}',
            PluginConfiguration(None, None),
        ),
    ]
    for text, found in cases:
        assert read_configuration(text) == found


def test_what_is_no_configuration() -> None:
    cases: list[tuple[str, str]] = [
        ("[]", "Expected `object`"),
        ("{flags: {migStrategy: some}}", "$.flags.migStrategy"),
        ("{sharing: []}", "$.sharing"),
        ("{sharing: {mps: {resources: [{replicas: 4}]}}}", "$.sharing.mps.resources[0]"),
        (
            "{sharing: {timeSlicing: {resources: [{name: a/b, replicas: 0}]}}}",
            "$.sharing.timeSlicing.resources[0].replicas",
        ),
        ("&a [*a]", ""),
    ]
    for text, place in cases:
        with pytest.raises(DocumentError) as error:
            read_configuration(text)
        assert place in str(error.value)


def test_which_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text(SHARED)
    (tmp_path / "linked").symlink_to(tmp_path / "shared")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (1 << 20))
    assert read_configuration_file(tmp_path, "linked").strategy is Strategy.MIXED
    for name, words in {
        "none": "shared",
        "../linked": "no name",
        "pipe": "regular file",
        "huge": "too large",
    }.items():
        with pytest.raises(NodeagentError, match=words):
            read_configuration_file(tmp_path, name)


async def test_the_label_says_only_whether_devices_are_shared() -> None:
    cases: list[tuple[dict[str, str], dict[str, int] | None]] = [
        ({}, {THREE: 2}),
        ({SHARING_LABEL: "none"}, {THREE: 2}),
        ({SHARING_LABEL: "mps"}, None),
    ]
    for sharing, counts in cases:
        plugin = DevicePlugin(None)
        assert await plugin.expected((AFTER,), {**MIXED, **sharing}, wanted=None) == counts


async def test_a_file_may_leave_the_strategy_to_the_plugins_flags(tmp_path: Path) -> None:
    """Then it is what the labels say that were written for no file, for this one, or for another
    that leaves it to the flags.
    """
    (tmp_path / "one").write_text("version: v1")
    plugin = DevicePlugin(tmp_path)
    assert await plugin.expected((AFTER,), MIXED, wanted="one") == {THREE: 2}
    other = {**MIXED, CONFIG: "two", FEATURES_LABEL: "2"}
    assert await plugin.expected((AFTER,), other, wanted="one") is None
    (tmp_path / "two").write_text("version: v1\nflags: {migStrategy: mixed}")
    assert await plugin.expected((AFTER,), other, wanted="one") is None
    (tmp_path / "two").write_text("version: v1")
    assert await plugin.expected((AFTER,), other, wanted="one") == {THREE: 2}


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
    for allocatable, words in cases:
        problems = mismatches({ONE: 2, THREE: 1}, allocatable, plugin=("-A -l app=plugin",))
        assert len(problems) == len(words)
        for problem, part in zip(problems, words, strict=True):
            assert part in problem.message
            assert "pods -A -l app=plugin`" in problem.remedy


# --- in an agent ----------------------------------------------------------------------------------


async def test_the_configuration_of_the_plan_counts(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    async with agent(server, tmp_path, plugin_configs=tmp_path / "configs") as it:
        [problem] = await it.round(config="shared")
        assert (problem.code, problem.path) == (Code.UNKNOWN_CONFIGURATION, "devicePluginConfig")
        (tmp_path / "configs" / "shared").write_text(SHARED + "    - {}")
        [problem] = await it.round(config="shared")
        assert problem.code is Code.INVALID_VALUE
        (tmp_path / "configs" / "shared").write_text(SHARED)
        assert await it.round(config="shared") == ()
        await until(lambda: labels(server, CONFIG).get(CONFIG) == "shared")
        await until(lambda: it.codes() == ["NotOffered"])
        assert f"{THREE}.shared where it should offer 8" in it.around.problems[0].message
        offer(server, **{"mig-3g.40gb.shared": "8"})
        await until(lambda: not it.around.problems)


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
