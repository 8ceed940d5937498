"""The two foreign protocols with the agent as a process, against the API server."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.plan_sources.mig_config.source import STATE
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG
from nodeagent.cluster.plan_sources.nos.grammar import CONFIGURATION_LABEL, MODE_LABEL, STATUS_PLAN
from tests.cluster.client.rig import until
from tests.cluster.plan_sources.nos.rig import spec
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig, status
from tests.simulated_cluster.api_server import ApiServer

SOON = 60.0  # seconds
NOS = "nos.nebuly.com/"
WHERE = ("nebuly-nvidia", "nos-device-plugin-configs")
PLACE = "/".join(WHERE)
SHARES = """\
version: v1
flags: {migStrategy: none}
sharing:
  mps:
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, rename: gpu-10gb, memoryGB: 10, replicas: 2, devices: ["0"]}
    - {name: nvidia.com/gpu, rename: gpu-40gb, memoryGB: 40, replicas: 1, devices: ["1"]}
"""


def agent(folder: Path, source: str, boards: str, *more: str, **settings: str) -> AgentProcess:
    """An agent with this source."""
    return AgentProcess(
        [*command(boards, folder), "--source", source, *more], folder, settings=settings
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: MPS' user has to reach it, and socket paths are short."""
    made = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[ApiServer]:
    """An API server with the Node, and a kubeconfig in `folder`."""
    async with ApiServer() as api:
        api.add_node(NAME)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
        yield api


def labels(api: ApiServer) -> dict[str, str]:
    """Those of the Node."""
    found: dict[str, str] = api.node(NAME)["metadata"]["labels"]
    return found


def of_nos(api: ApiServer) -> dict[str, str]:
    """What is answered to nos, by what follows its prefix."""
    found = api.node(NAME)["metadata"].get("annotations", {})
    return {k.removeprefix(NOS): v for k, v in found.items() if k.startswith(f"{NOS}status")}


def written(api: ApiServer, kind: str, key: str) -> list[Any]:
    """The values that patches gave this key, in their order."""
    bodies = [
        r.body["metadata"] for r in api.requests if r.method == "PATCH" and "metadata" in r.body
    ]
    return [body[kind][key] for body in bodies if key in body.get(kind, {})]


@pytest.mark.full
async def test_mig_config(tmp_path: Path) -> None:
    """The states of a success and of a kill in the middle, which the next process finishes."""
    async with cluster(tmp_path) as api:
        api.patch_node(NAME, {"metadata": {"labels": {CONFIG: "all-balanced"}}})
        kept = ["--state", str(tmp_path / "node.json")]
        async with agent(tmp_path, "mig-config", "h100-80gb:1", *kept) as process:
            await until(lambda: labels(api).get(STATE) == "success", seconds=SOON)
            api.patch_node(NAME, {"metadata": {"labels": {CONFIG: "all-1g.10gb"}}})
            os.kill(process.pid, signal.SIGKILL)
        assert written(api, "labels", STATE)[:2] == ["pending", "success"]
        async with agent(tmp_path, "mig-config", "h100-80gb:1", *kept):
            await until(lambda: written(api, "labels", STATE)[2:][-1:] == ["success"], seconds=SOON)
            found = status(api)
            assert found is not None
            assert [i["profile"] for i in found["gpus"][0]["instances"]] == ["1g.10gb"] * 7


@pytest.mark.skipif(os.geteuid() not in (0, 1000), reason="nos' clients are of the user 1000")
@pytest.mark.full
async def test_nos(folder: Path) -> None:
    """A node divided by MIG, then by MPS as the ConfigMap says; each answered in one patch."""
    async with cluster(folder) as api:
        asked = spec("1714000000", **{"0-3g.40gb": "2", "1-7g.80gb": "1"})
        api.patch_node(NAME, {"metadata": {"labels": {MODE_LABEL: "mig"}, "annotations": asked}})
        settings = {"NODEAGENT_KUBERNETES_NOS_CONFIG_MAP": PLACE}
        async with agent(folder, "nos", "h100-80gb:2", **settings):
            await until(lambda: of_nos(api).get("status-partitioning-plan"), seconds=SOON)
            assert of_nos(api) == {
                "status-gpu-0-3g.40gb-free": "2",
                "status-gpu-1-7g.80gb-free": "1",
                "status-partitioning-plan": "1714000000",
            }
            assert written(api, "annotations", STATUS_PLAN) == ["1714000000"]
            api.put_config_map(*WHERE, {f"{NAME}-1714000100": SHARES})
            key = {CONFIGURATION_LABEL: f"{NAME}-1714000100", MODE_LABEL: "mps"}
            api.patch_node(NAME, {"metadata": {"labels": key}})
            expected = {"status-gpu-0-10gb-free": "2", "status-gpu-1-40gb-free": "1"}
            await until(
                lambda: {k: v for k, v in of_nos(api).items() if "gpu" in k} == expected,
                seconds=SOON,
            )
        assert len([r for r in api.requests if "configmaps" in r.path]) == 1
