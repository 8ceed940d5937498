"""The tests' kubelet finds plugins as the real one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import (
    RegistrationStatus,
)
from tests.cluster.client.rig import until
from tests.simulated_cluster.bare_plugin import DRIVER, ONE, Plugin, serving
from tests.simulated_cluster.kubelet_claims import DraKubelet, PodFailed
from tests.simulated_cluster.kubelet_plugins import (
    V1_37,
    VERSIONS,
    KubeletVersion,
)

pytestmark = pytest.mark.usefixtures("grpc_ends")
each_version = pytest.mark.parametrize("version", VERSIONS, ids=str)


@each_version
async def test_the_first_known_version_is_taken(tmp_path: Path, version: KubeletVersion) -> None:
    """In the plugin's order; the plugin is notified, and forgotten when its socket goes."""
    plugin = Plugin(tmp_path)
    async with DraKubelet(tmp_path, version) as kubelet:
        async with plugin.running():
            await until(lambda: plugin.notified)
            assert plugin.notified == [RegistrationStatus(plugin_registered=True)]
            registered = kubelet.plugins.get(DRIVER)
            assert registered is not None
            assert registered.service == "v1.DRAPlugin"
        await until(lambda: not kubelet.plugins.found)
        with pytest.raises(PodFailed, match=f"DRA driver {DRIVER} is not registered"):
            await kubelet.prepare("pod", ONE)
        assert kubelet.checkpoint == {}


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ({"kind": "Other"}, "no handler registered for plugin type: Other at socket"),
        (
            {"versions": ("v9.DRAPlugin",)},
            'by the plugin (["v9.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" ',
        ),
    ],
    ids=["kind", "versions"],
)
async def test_a_refusal_is_reported(tmp_path: Path, plugin: dict[str, Any], words: str) -> None:
    """With the kubelet's words, again and again."""
    refused = Plugin(tmp_path, **plugin)
    async with DraKubelet(tmp_path) as kubelet, refused.running():
        await until(lambda: len(refused.notified) >= 2)
        assert not kubelet.plugins.found
    assert not refused.notified[0].plugin_registered
    assert words in refused.notified[0].error


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("/run/dra.sock", 'endpoint "/run/dra.sock" is not inside'),
        ("dra.sock", "must be an absolute path"),
        ("/" + "x" * 107, "must not be longer than 108 bytes"),
    ],
)
async def test_endpoints_are_checked_from_1_37_on(
    tmp_path: Path, endpoint: str, words: str
) -> None:
    """Before, the plugin is registered and cannot be reached."""
    plugin = Plugin(tmp_path, endpoint=endpoint)
    async with DraKubelet(tmp_path, V1_37), plugin.running():
        await until(lambda: plugin.notified)
        assert words in plugin.notified[0].error


async def test_files_that_are_no_plugins_are_passed_over(tmp_path: Path) -> None:
    """Hidden sockets and other files; a socket that is not served is tried again."""
    async with DraKubelet(tmp_path) as kubelet:
        registry = kubelet.plugins.registry
        (registry / "file.sock").touch()
        for name in (".hidden.sock", "dead.sock"):
            async with serving(registry / "live", {}):
                (registry / name).hardlink_to(registry / "live")
        await until(lambda: sum("dead.sock" in one for one in kubelet.plugins.failures) >= 2)
        assert not any("hidden" in one or "file" in one for one in kubelet.plugins.failures)


async def test_slices_are_wiped(tmp_path: Path) -> None:
    """Those of all drivers at the kubelet's start, a driver's when it has been gone for long."""
    plugin = Plugin(tmp_path)
    async with DraKubelet(tmp_path, wipe_after=60) as kubelet, plugin.running():
        await until(lambda: kubelet.plugins.get(DRIVER))
        assert kubelet.plugins.wipes == [""]
        await kubelet.restart()
        assert kubelet.plugins.wipes == ["", ""]
    async with DraKubelet(tmp_path, wipe_after=0.01) as kubelet:
        async with plugin.running():
            await until(lambda: kubelet.plugins.get(DRIVER))
        await until(lambda: kubelet.plugins.wipes[-1] == DRIVER)
