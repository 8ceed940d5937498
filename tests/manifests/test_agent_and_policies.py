"""A whole agent, with everything that it writes around a change, keeps to the policies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.machine_load import stretched
from tests.manifests.admission import Asked, policy
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.store import Change

DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
TEXT = "version: v1\ngpus: [{devices: all, mig: {1g.10gb: 7}}]\ndevicePluginConfig: a\n"
SETTINGS = {
    "NODEAGENT_KUBERNETES_CLIENTS": "pauseLabels",
    "NODEAGENT_KUBERNETES_CORDON": "true",
    "NODEAGENT_KUBERNETES_ALLOCATABLE_DEADLINE": "100ms",
    "NODEAGENT_KUBERNETES_LAYOUT_LABELS": "true",
}


def _is_asked_for(change: Change) -> bool:
    """Whether it is this test's own."""
    return bool(_plan(change.before) != _plan(change.after))


def _plan(node: dict[str, Any] | None) -> Any:
    return (node or {}).get("metadata", {}).get("annotations", {}).get(PLAN)


def _denials(change: Change) -> list[str]:
    """What the policies say to a change that the agent made."""
    if change.plural == "events":
        operation = "UPDATE" if change.before else "CREATE"
        asked = Asked(operation, "events", change.after, change.before, node=NAME)
        return policy("nodeagent-own-events").denials(asked)
    assert change.plural == "nodes"
    asked = Asked("UPDATE", "nodes", change.after, change.before, node=NAME)
    return policy("nodeagent-own-node").denials(asked)


async def test_the_agent_writes_only_what_the_policies_let_through(tmp_path: Path) -> None:
    """With a cordon, paused clients, the device plugin's configuration, labels, conditions and
    Events: each of its writes passes.
    """
    changes: asyncio.Queue[Change] = asyncio.Queue()
    made: list[Change] = []

    def seen(wanted: str) -> bool:
        while not changes.empty():
            made.append(changes.get_nowait())
        return wanted in str([change.after for change in made])

    async with ApiServer() as api:
        api.add_node(NAME, labels={DEPLOY: "true"})
        api.store.watching.add(changes)
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url))
        async with AgentProcess(command("h100-80gb:1", tmp_path), tmp_path, settings=SETTINGS):
            api.annotate(NAME, **{PLAN: TEXT})
            await until_status(api, in_sync(TEXT))
            async with asyncio.timeout(stretched(30)):
                while not (seen("GPUPartitionsReady") and seen("'Event'") and _is_quiet(api)):
                    await asyncio.sleep(0.1)
    wrote = [change for change in made if not _is_asked_for(change)]
    for sign in ("nodeagent.io/cordoned", "paused-for-mig-change", "'unschedulable': True"):
        assert sign in str(wrote), sign
    assert [denial for change in wrote for denial in _denials(change)] == []


def _is_quiet(api: ApiServer) -> bool:
    """Whether what was changed for the time is as it was."""
    node = api.node(NAME)
    return node["metadata"]["labels"][DEPLOY] == "true" and not node["spec"].get("unschedulable")
