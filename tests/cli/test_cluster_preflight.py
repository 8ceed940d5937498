import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from nodeagent.cli.checks import PreflightFinding
from nodeagent.cli.checks.cluster import cluster_findings, counting, counting_finding
from nodeagent.cli.checks.files import node_finding
from nodeagent.cli.checks.machine import kubelet_findings
from nodeagent.settings import KubeletSettings, KubernetesSettings, PlanSettings
from nodeagent.settings.cluster import DraSettings
from nodeagent.structs import replace
from tests.cli.conftest import Program
from tests.cluster.client.rig import kubeconfig
from tests.simulated_cluster.agent import PLAN
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet import Kubelet

NODE = "gpu-node-0"
DRA = DraSettings()
SERVED = DraSettings(mode="static")
NAMED = DraSettings(mode="dynamic", driver="gpu.nvidia.com")


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as served:
        served.add_node(NODE)
        yield served


async def _look(
    api: ApiServer,
    folder: Path,
    settings: Mapping[str, Any] = MappingProxyType({}),
    *,
    node: str = NODE,
    token: str | None = None,
    dra: DraSettings = DRA,
) -> dict[str, PreflightFinding]:
    """The findings by what was looked at; of several the last."""
    config = kubeconfig(folder, api.url, token=token).path
    wanted = replace(KubernetesSettings(kubeconfig=config), **settings)
    found, _ = await asyncio.to_thread(
        cluster_findings, wanted, node, "annotation", dra, folder / "kubelet"
    )
    return {finding.check: finding for finding in found}


async def test_all_well_changes_nothing(api: ApiServer, tmp_path: Path) -> None:
    before = api.node(NODE)
    found = await _look(api, tmp_path)
    assert {finding.level for finding in found.values()} == {"ok"}
    checks = {"API server", "Node", "Node's changes", "limits", "rights", "other managers"}
    assert found.keys() >= checks
    assert api.node(NODE) == before
    written = [request.query for request in api.requests if request.method == "PATCH"]
    assert written == [{"dryRun": "All"}] * 3


async def test_an_account_that_nothing_limits(api: ApiServer, tmp_path: Path) -> None:
    api.access.unguarded = True
    before = api.node(NODE)
    found = await _look(api, tmp_path)
    assert (found["rights"].level, found["limits"].level) == ("ok", "warning")
    assert "node-policy.yaml" in found["limits"].remedy
    assert api.node(NODE) == before


async def test_a_name_that_no_node_has(api: ApiServer, tmp_path: Path) -> None:
    """The most likely mistake under systemd, where the host's name is taken."""
    found = await _look(api, tmp_path, node="gpu-node-9")
    assert found["API server"].level == "ok"
    assert found["Node"].level == "error"
    assert "node_name" in found["Node"].remedy


async def test_a_runtime_class_that_is_missing(api: ApiServer, tmp_path: Path) -> None:
    assert (await _look(api, tmp_path))["RuntimeClass"].level == "ok"
    api.runtime_classes.clear()
    found = (await _look(api, tmp_path))["RuntimeClass"]
    assert found.level == "warning"
    assert "no RuntimeClass nvidia" in found.message
    assert "docs/install.md" in found.remedy
    api.access.withheld.add(("get", "runtimeclasses"))
    assert "RuntimeClass" not in await _look(api, tmp_path)


async def test_nvidias_name_is_free_where_its_driver_is_not(api: ApiServer, tmp_path: Path) -> None:
    """Its socket, then its slices; none of the agent's own. What cannot be known is said."""
    registry = tmp_path / "kubelet/plugins_registry"

    async def finding() -> PreflightFinding:
        return (await _look(api, tmp_path, dra=NAMED))["DRA driver"]

    assert (await finding()).level == "warning"
    registry.mkdir(parents=True)
    slice_of(api, "own", f"{NODE}/gpu-1")
    with listening(registry / "gpu.nvidia.com-0123abcd-reg.sock"):
        assert (await finding()).level == "ok"
        with listening(registry / "gpu.nvidia.com-reg.sock"):
            found = await finding()
            assert (found.level, "-reg.sock is served" in found.message) == ("error", True)
    slice_of(api, "theirs", NODE)
    found = await finding()
    assert (found.level, "has ResourceSlices" in found.message) == ("error", True)
    assert "dra.mode: off" in found.remedy


def slice_of(api: ApiServer, name: str, pool: str) -> None:
    """A ResourceSlice of the driver that has NVIDIA's name."""
    spec = {"driver": NAMED.driver, "nodeName": NODE, "devices": []}
    pooled = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    body = {"metadata": {"name": name}, "spec": {**spec, "pool": pooled}}
    api.store.create("resourceslices", "", body)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """A served socket; it stays when it is not served any more."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as served:
            served.bind(f"/proc/self/fd/{folder}/{path.name}")
            served.listen()
            yield
    finally:
        os.close(folder)


async def test_no_server_answers(api: ApiServer, tmp_path: Path) -> None:
    async with api.refusing():
        found = await _look(api, tmp_path)
    assert found.keys() == {"API server"}
    assert found["API server"].level == "error"
    assert api.url in found["API server"].message


async def test_credentials_that_are_refused(api: ApiServer, tmp_path: Path) -> None:
    api.tokens["good"] = "agent"
    found = await _look(api, tmp_path, token="stale")
    assert found["API server"].level == "error"
    assert "`kubectl create token nodeagent" in found["API server"].remedy
    assert "stale" not in found["API server"].message


async def test_credentials_that_cannot_be_read(tmp_path: Path) -> None:
    settings = KubernetesSettings(kubeconfig=tmp_path / "none")
    [finding], _ = await asyncio.to_thread(cluster_findings, settings, NODE, "file", DRA, tmp_path)
    assert (finding.check, finding.level) == ("credentials", "error")
    assert str(tmp_path / "none") in finding.message


@pytest.mark.parametrize(
    ("right", "check", "level", "settings"),
    [
        (("list", "nodes"), "rights", "error", {}),
        (("patch", "nodes"), "Node's changes", "error", {}),
        (("patch", "nodes/status"), "Node's changes", "error", {}),
        (("create", "events"), "rights", "warning", {}),
        (("list", "pods"), "other managers", "error", {}),
        (("delete", "pods"), "rights", "warning", {"clients": "deletePods"}),
    ],
)
async def test_each_right_that_is_missing(
    *,
    right: tuple[str, str],
    check: str,
    level: str,
    settings: dict[str, object],
    api: ApiServer,
    tmp_path: Path,
) -> None:
    api.access.withheld.add(right)
    if right == ("list", "pods"):
        api.patch_node(
            NODE, {"metadata": {"labels": {"nvidia.com/gpu.deploy.mig-manager": "true"}}}
        )
    found = await _look(api, tmp_path, settings)
    assert found[check].level == level
    assert found[check].remedy


@pytest.mark.parametrize(
    "right",
    [("create", "resourceslices"), ("get", "resourceclaims"), ("patch", "resourceclaims/status")],
)
async def test_rights_of_claims(right: tuple[str, str], api: ApiServer, tmp_path: Path) -> None:
    api.access.withheld.add(right)
    found = await _look(api, tmp_path, dra=SERVED)
    assert found["rights"].level == "warning"
    assert right[1] in found["rights"].message
    assert "component dra" in found["rights"].remedy
    specs = [one.body["spec"]["resourceAttributes"] for one in api.requests if one.method == "POST"]
    groups = {(one["group"], one["resource"]) for one in specs}
    assert {("resource.k8s.io", right[1].partition("/")[0]), ("", "nodes")} <= groups
    assert (await _look(api, tmp_path))["rights"].level == "ok"


async def test_a_right_that_the_settings_do_not_need(api: ApiServer, tmp_path: Path) -> None:
    api.access.withheld.add(("delete", "pods"))
    assert (await _look(api, tmp_path))["rights"].level == "ok"


async def test_a_token_of_another_node(api: ApiServer, tmp_path: Path) -> None:
    api.tokens["t"] = "agent"
    api.access.own_node["t"] = "gpu-node-1"
    found = await _look(api, tmp_path, token="t")
    assert found["rights"].level == "ok"
    assert found["Node's changes"].level == "error"
    assert "bound" in found["Node's changes"].remedy


async def test_whether_shares_of_gpus_are_counted(api: ApiServer, tmp_path: Path) -> None:
    """The stand-in is a 1.36.0, in which they may be allocated beside MIG devices."""
    settings = KubernetesSettings(kubeconfig=kubeconfig(tmp_path, api.url).path)
    found = await counting(settings)
    assert found == counting_finding("v1.36.0-test")
    assert "mig: disabled" in found.remedy


@pytest.mark.parametrize(
    ("dra", "planned", "matters"),
    [
        ("mode: static, share: memory", "off", False),
        ("mode: dynamic, share: memory", "off", True),
        ("mode: dynamic", "off", False),
        ("mode: dynamic", "time", True),
    ],
)
async def test_shares_matter_where_claims_have_them(
    api: ApiServer, h100: Program, tmp_path: Path, *, dra: str, planned: str, matters: bool
) -> None:
    api.annotate(NODE, **{PLAN: f"version: v1\ngpus: [{{devices: all, share: {planned}}}]"})
    cluster = f"{{kubeconfig: {kubeconfig(tmp_path, api.url).path}}}"
    text = f"node_name: {NODE}\nkubernetes: {cluster}\ndra: {{{dra}}}\n"
    words = ("check", "-o", "json", "--settings", h100.file(text, "s.yaml"))
    ended = await asyncio.to_thread(h100.on, *words)
    found = [one["check"] for one in ended.json["findings"]]
    assert "rights" in found
    assert ("shares of GPUs" in found) == matters


@pytest.mark.parametrize(
    ("version", "level", "word"),
    [
        ("v1.35.9", "warning", "#139034"),
        ("v1.36.1+k3s1", "warning", "#139034"),
        ("v1.36.2-gke.1000", "ok", "#140436"),
        ("v1.37.0", "ok", "v1.37.0 counts them"),
        ("v2.0.0", "ok", "counts them"),
        ("None", "warning", "Kubernetes None"),
    ],
)
def test_releases_that_count_shares_of_gpus(version: str, level: str, word: str) -> None:
    found = counting_finding(version)
    assert found.level == level
    assert word in found.message


async def test_another_manager(api: ApiServer, tmp_path: Path) -> None:
    api.add_pod("mm-x", node=NODE, namespace="gpu-operator", labels={"app": "nvidia-mig-manager"})
    found = await _look(api, tmp_path)
    assert found["other managers"].level == "error"
    assert "gpu-operator/mm-x" in found["other managers"].message
    tolerating = await _look(api, tmp_path, {"tolerate": ["mig-manager"]})
    assert tolerating["other managers"].level == "ok"


async def test_settings_that_name_no_known_manager(api: ApiServer, tmp_path: Path) -> None:
    found = await _look(api, tmp_path, {"tolerate": ["mig-parted"]})
    assert found["settings"].level == "error"


@pytest.mark.parametrize(
    ("source", "metadata", "level", "word"),
    [
        ("annotation", {}, "warning", "nodeagent.io/plan"),
        ("annotation", {"nodeagent.io/plan": "version: v1\ngpus: []\n"}, "ok", NODE),
        ("annotation", {"nodeagent.io/plan": "{"}, "error", NODE),
        ("mig-config", {}, "warning", "nvidia.com/mig.config"),
        ("mig-config", {"nvidia.com/mig.config": "all-balanced"}, "ok", "all-balanced"),
        ("nos", {}, "warning", "nos.nebuly.com/spec-"),
        ("nos", {"nos.nebuly.com/spec-gpu-0-1g.10gb": "2"}, "ok", "nos.nebuly.com/spec-"),
    ],
)
async def test_what_the_node_asks_for(
    *, source: str, metadata: dict[str, str], level: str, word: str, api: ApiServer, tmp_path: Path
) -> None:
    kind = "labels" if source == "mig-config" else "annotations"
    api.patch_node(NODE, {"metadata": {kind: metadata}})
    settings = KubernetesSettings(kubeconfig=kubeconfig(tmp_path, api.url).path)
    _, node = await asyncio.to_thread(cluster_findings, settings, NODE, source, DRA, tmp_path)
    assert node is not None
    plan = PlanSettings(file=tmp_path / "plan.yaml")
    found, _ = await asyncio.to_thread(node_finding, node, source, plan)
    assert found.level == level
    assert word in found.message
    found, _ = await asyncio.to_thread(node_finding, node, source, plan, for_claims=True)
    assert found.level == ("ok" if level == "warning" else level)


async def test_the_kubelet(tmp_path: Path) -> None:
    """One that answers is fine; one that does not makes everything count as in use."""
    settings = KubeletSettings(socket=tmp_path / "kubelet.sock")

    async def look(*, in_cluster: bool, simulated: bool = False) -> list[PreflightFinding]:
        return await asyncio.to_thread(
            lambda: list(kubelet_findings(settings, in_cluster=in_cluster, simulated=simulated))
        )

    [silent] = await look(in_cluster=True)
    assert silent.level == "error"
    assert "counts as in use" in silent.message
    assert await look(in_cluster=True, simulated=True) == []
    elsewhere = KubeletSettings(socket=Path("/") / ("x" * 256) / "kubelet.sock")  # not to be seen
    assert list(kubelet_findings(elsewhere, in_cluster=False, simulated=False)) == []
    async with Kubelet(tmp_path):
        [answering] = await look(in_cluster=True)
    assert answering.level == "ok"


async def test_the_nodes_plan_is_held_against_cards(
    api: ApiServer, tmp_path: Path, h100: Program
) -> None:
    api.patch_node(
        NODE,
        {
            "metadata": {
                "annotations": {
                    "nodeagent.io/plan": "{version: v1, gpus: [{devices: [7], mig: disabled}]}"
                }
            }
        },
    )
    config = kubeconfig(tmp_path, api.url).path
    own = ("--run-dir", tmp_path / "run", "--state-dir", tmp_path / "lib")
    words = ("check", "-o", "json", "--kubeconfig", config, "--node-name", NODE, *own)
    ended = await asyncio.to_thread(h100.on, *words)
    found = {finding["check"]: finding for finding in ended.json["findings"]}
    assert ended.code == 1
    assert found["plan"]["level"] == "ok"
    assert found["plan on this node"]["level"] == "error"
    assert found["API server"]["level"] == "ok"
