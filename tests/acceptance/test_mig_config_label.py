"""mig-manager's label protocol over a cluster: the order of writes that its readers rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig
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


async def seen_until_success(changes: asyncio.Queue[Any]) -> bool:
    """Follow the Node to success after pending; whether clients were paused on the way, and back
    by then.
    """
    pending = was_paused = False
    async with asyncio.timeout(120):
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
