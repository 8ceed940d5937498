"""mig-manager's label protocol over a cluster: the order of writes that its readers rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nodeagent.simulation import SimulatedNode
from tests.machine_load import stretched
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig, until_status
from tests.simulated_cluster.api_server import ApiServer

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
CLIENTS = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dcgm-exporter")
PAUSED = "paused-for-mig-change"


async def test_success_comes_last(tmp_path: Path) -> None:
    """Clients that were paused are back before the state says success, each time."""
    labels = {CONFIG: "all-1g.10gb", "nvidia.com/mig.strategy": "mixed"}
    async with ApiServer(latency=0.002) as api:
        api.add_node(NAME, labels={**labels, **dict.fromkeys(CLIENTS, "true")})
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [*command("h100-80gb:1", tmp_path), "--source", "mig-config"]
        changes: asyncio.Queue[Any] = asyncio.Queue()
        api.store.watching.add(changes)
        settings = {"NODEAGENT_KUBERNETES_CLIENTS": "pauseLabels"}
        async with AgentProcess(agent, tmp_path, settings=settings):
            assert await seen_until_success(changes)
            api.patch_node(NAME, {"metadata": {"labels": {CONFIG: "all-3g.40gb"}}})
            assert await seen_until_success(changes)
        api.store.watching.discard(changes)


async def test_a_setting_without_effect_fails_no_change(tmp_path: Path) -> None:
    """While a change waits for a workload the state is pending, whatever else is wrong."""
    state = tmp_path / "node.json"
    async with ApiServer() as api:
        api.add_node(NAME, labels={CONFIG: "all-7g.80gb"})
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [*command("h100-80gb:1", tmp_path), "--source", "mig-config"]
        settings = {"NODEAGENT_DRA_SHARE": "8Gi"}  # counts in mode dynamic alone
        async with AgentProcess([*agent, "--state", str(state)], tmp_path, settings=settings):
            await until_status(api, lambda status: status["phase"] == "InSync")
            with SimulatedNode(state=state) as node:
                node.occupy("0/0/0")
            api.patch_node(NAME, {"metadata": {"labels": {CONFIG: "all-3g.40gb"}}})
            found = await until_status(api, lambda status: status["phase"] == "Blocked")
            assert {problem["code"] for problem in found["problems"]} == {"InUse", "NoEffect"}
            assert api.node(NAME)["metadata"]["labels"][STATE] == "pending"


async def seen_until_success(changes: asyncio.Queue[Any]) -> bool:
    """Follow the Node to success after pending; whether clients were paused on the way, and back
    by then.
    """
    pending = was_paused = False
    async with asyncio.timeout(stretched(120)):
        while True:
            change = await changes.get()
            if change.plural != "nodes" or change.after is None:
                continue
            labels = change.after["metadata"]["labels"]
            paused = PAUSED in {labels.get(client) for client in CLIENTS}
            was_paused |= paused
            pending |= labels.get(STATE) == "pending"
            if pending and labels.get(STATE) == "success":
                return was_paused and not paused
