"""Whether the device plugin can serve a plan, and what it will offer: its files and its labels."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.cluster.drain.device_plugin import (
    SHARING_LABEL,
    PluginConfiguration,
    Strategy,
)
from nodeagent.cluster.drain.plugin_outlook import (
    PluginOutlook,
    read_configuration,
    read_configuration_file,
)
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Code
from tests.cluster.client.rig import until
from tests.cluster.drain.rig import AFTER, MIXED, NODE, agent, asked, labels, offer
from tests.simulated_cluster.api_server import ApiServer

CONFIG = "nvidia.com/device-plugin.config"
THREE = "nvidia.com/mig-3g.40gb"
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


def test_what_a_configuration_says() -> None:
    """Strategy and sharing; how many, where plugins differ in what they make of it, is not said."""
    cases: list[tuple[str, PluginConfiguration]] = [
        ("", PluginConfiguration()),
        ("version: v1", PluginConfiguration()),
        ("{sharing: {mps: {resources: []}}}", PluginConfiguration()),
        ("{flags: {migStrategy: single}}", PluginConfiguration(Strategy.SINGLE)),
        (
            SHARED,
            PluginConfiguration(Strategy.MIXED, ((THREE, 4),), rename_by_default=True),
        ),
        (
            (
                "{sharing: {timeSlicing: {resources: [{name: a/b, replicas: 3}]}, "
                "mps: {resources: [{name: nvidia.com/gpu, devices: all, replicas: 2}]}}}"
            ),
            PluginConfiguration(None, (("nvidia.com/gpu", 2),), by_mps=True),
        ),
        (
            "{sharing: {mps: {resources: [{name: a/b, rename: c, replicas: 3}]}}}",
            PluginConfiguration(None, None, by_mps=True),
        ),
        (
            '{sharing: {mps: {resources: [{name: a/b, devices: ["0"], replicas: 3}]}}}',
            PluginConfiguration(None, None, by_mps=True),
        ),
    ]
    for text, found in cases:
        assert read_configuration(text) == found


def test_what_is_no_configuration() -> None:
    """The place is named; what is no plain YAML is refused as in any other document."""
    cases: list[tuple[str, str]] = [
        ("[]", "the document"),
        ("{flags: {migStrategy: some}}", "flags.migStrategy"),
        ("{flags: {migStrategy: [single]}}", "flags.migStrategy"),
        ("{sharing: []}", "sharing is"),
        ("{sharing: {mps: {resources: 4}}}", "sharing.mps.resources"),
        ("{sharing: {mps: {resources: [4]}}}", "sharing.mps.resources[0]"),
        ("{sharing: {mps: {resources: [{replicas: 4}]}}}", "sharing.mps.resources[0].name"),
        (
            "{sharing: {timeSlicing: {resources: [{name: a/b, replicas: many}]}}}",
            "sharing.timeSlicing.resources[0].replicas",
        ),
        (
            "{sharing: {timeSlicing: {renameByDefault: 1, resources: [{name: a/b, replicas: 2}]}}}",
            "sharing.timeSlicing.renameByDefault",
        ),
        ("&a [*a]", ""),
    ]
    for text, place in cases:
        with pytest.raises(DocumentError) as error:
            read_configuration(text)
        assert place in str(error.value)


async def test_the_label_says_only_whether_devices_are_shared() -> None:
    """How many replicas of what a future layout has, no label can tell."""
    cases: list[tuple[dict[str, str], dict[str, int] | None]] = [
        ({}, {THREE: 2}),
        ({SHARING_LABEL: "none"}, {THREE: 2}),
        ({SHARING_LABEL: "mps"}, None),
        ({SHARING_LABEL: "time-slicing"}, None),
    ]
    for sharing, counts in cases:
        outlook, observed = PluginOutlook(None), ObservedNode((AFTER,))
        assert await outlook.expected(observed, {**MIXED, **sharing}, wanted=None) == counts


def test_which_files_are_read(tmp_path: Path) -> None:
    """Regular files in the folder, by a plain name; the others are named in the error."""
    (tmp_path / "shared").write_text(SHARED)
    (tmp_path / "linked").symlink_to(tmp_path / "shared")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (1 << 20))
    assert read_configuration_file(tmp_path, "shared").strategy is Strategy.MIXED
    assert read_configuration_file(tmp_path, "linked").strategy is Strategy.MIXED
    for name, words in {
        "none": "shared",
        "../linked": "no name",
        "pipe": "regular file",
        "huge": "too large",
    }.items():
        with pytest.raises(NodeagentError, match=words):
            read_configuration_file(tmp_path, name)


@pytest.mark.parametrize("strategy", ["none", "single"])
async def test_a_strategy_that_cannot_serve_is_found_before(
    server: ApiServer, tmp_path: Path, strategy: str
) -> None:
    """`none` refuses, with nothing touched; `single` serves a layout of one kind."""
    features = {"nvidia.com/mig.strategy": strategy, "nvidia.com/gfd.timestamp": "2"}
    server.patch_node(NODE, {"metadata": {"labels": features}})
    async with agent(server, tmp_path, clients="pauseLabels") as it:
        problems = await it.round()
        assert [p.code for p in problems] == ([Code.UNSUPPORTED] if strategy == "none" else [])
        assert not [a for a in asked(server) if a.startswith("PATCH")]


async def test_the_configuration_of_the_plan_counts(server: ApiServer, tmp_path: Path) -> None:
    """Its file says what will be offered, under which name; a file that is not there refuses."""
    (tmp_path / "configs").mkdir()
    async with agent(server, tmp_path, plugin_configs=tmp_path / "configs") as it:
        [problem] = await it.round(config="shared")
        assert (problem.code, problem.path) == (Code.UNKNOWN_CONFIGURATION, "devicePluginConfig")
        (tmp_path / "configs" / "shared").write_text(SHARED + "    - {}")
        [problem] = await it.round(config="shared")
        assert problem.code is Code.INVALID_VALUE
        (tmp_path / "configs" / "shared").write_text(SHARED.replace("mixed", "none"))
        assert [p.code for p in await it.round(config="shared")] == [Code.UNSUPPORTED]
        (tmp_path / "configs" / "shared").write_text(SHARED)
        assert await it.round(config="shared") == ()
        await until(lambda: labels(server, CONFIG).get(CONFIG) == "shared")
        await until(lambda: it.codes() == ["NotOffered"])
        assert f"{THREE}.shared where it should offer 8" in it.around.problems[0].message
        offer(server, **{"mig-3g.40gb.shared": "8"})
        await until(lambda: not it.around.problems)


async def test_an_undescribed_configuration_is_not_judged(
    server: ApiServer, tmp_path: Path
) -> None:
    """What feature discovery said of the old one says nothing of the next one."""
    features = {"nvidia.com/mig.strategy": "none", "nvidia.com/gfd.timestamp": "2"}
    server.patch_node(NODE, {"metadata": {"labels": features}})
    async with agent(server, tmp_path) as it:
        assert await it.round(config="other") == ()
        await until(lambda: labels(server, CONFIG).get(CONFIG) == "other")
        assert it.around.problems == ()


async def test_reported_labels_are_remembered(server: ApiServer, tmp_path: Path) -> None:
    """Feature discovery is sent away with its labels; the offer is awaited by what they said."""
    async with agent(server, tmp_path) as it:
        server.patch_node(NODE, {"metadata": {"labels": dict.fromkeys(MIXED)}})
        offer(server, **{"mig-7g.80gb": "1"})
        await it.round(AFTER, AFTER)
        assert await it.round() == ()
        await until(lambda: it.codes() == ["NotOffered", "NotOffered"])
