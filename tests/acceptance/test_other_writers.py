import asyncio
import json
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode
from tests.acceptance.cluster_rig import NODE, Member
from tests.agent_environment import asked
from tests.machine_load import stretched, until
from tests.simulated_cluster.agent import NAME, AgentProcess, command, served, until_status
from tests.simulated_cluster.api_server import ApiServer


@pytest.mark.timeout(240)  # two agents start, and each waits longer after every time
async def test_both_say_so(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("pod", "service")]
    for folder in folders:
        folder.mkdir()
    async with served(folders[0]) as api:
        shutil.copy(folders[0] / "kubeconfig", folders[1])
        first, second = (
            AgentProcess(command(boards, folder), folder)
            for boards, folder in zip(("h100-80gb:1", "a100-40gb:1"), folders, strict=True)
        )
        async with first, second, asyncio.timeout(stretched(200)):
            while len(said := [e for e in api.events if e["reason"] == "Contested"]) < 1:
                await asyncio.sleep(0.05)
            assert said[0]["type"] == "Warning"
            # Whichever of the two agents' annotations and conditions was undone last is named.
            assert re.match(rf"another program overwrites .+ of Node {NAME}", said[0]["message"])
            assert "second agent" in said[0]["message"]
            assert said[0]["reportingInstance"] == platform.node()
            for folder in folders:
                while "Contested" not in await codes(folder):
                    await asyncio.sleep(0.2)


async def codes(folder: Path) -> set[str]:
    """Of the problems that the agent with its socket there has, in its headline too."""
    _, text = await asyncio.to_thread(asked, folder, "/v1/status")
    status: dict[str, Any] = json.loads(text)
    return {problem["code"] for problem in status["problems"]} & {status["headline"]["code"]}


# --- mig-manager's label --------------------------------------------------------------------------


CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
CLIENTS = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dcgm-exporter")
PAUSED = "paused-for-mig-change"


async def test_success_comes_last(tmp_path: Path) -> None:
    labels = {CONFIG: "all-1g.10gb", "nvidia.com/mig.strategy": "mixed"}
    labels |= dict.fromkeys(CLIENTS, "true")
    async with served(tmp_path, latency=0.002, labels=labels) as api:
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
    async with served(tmp_path, labels={CONFIG: "all-7g.80gb"}) as api:
        agent = [*command("h100-80gb:1", tmp_path), "--source", "mig-config"]
        settings = {"NODEAGENT_DRA_SHARE": "memory"}  # counts in mode dynamic alone
        async with AgentProcess([*agent, "--state", str(state)], tmp_path, settings=settings):
            await until_status(api, lambda status: status["phase"] == "InSync")
            with SimulatedNode(state=state) as node:
                node.occupy("0/0/0")
            api.patch_node(NAME, {"metadata": {"labels": {CONFIG: "all-3g.40gb"}}})
            found = await until_status(api, lambda status: status["phase"] == "Blocked")
            assert {problem["code"] for problem in found["problems"]} == {"InUse", "NoEffect"}
            assert api.node(NAME)["metadata"]["labels"][STATE] == "pending"


async def seen_until_success(changes: asyncio.Queue[Any]) -> bool:
    """Follow the Node from pending to success; whether clients were paused then, and came back."""
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


# --- another manager has the GPUs -----------------------------------------------------------------


HAMI_REGISTER = {"hami.io/node-nvidia-register": '[{"mode": "mig"}]'}
NOS_MODE = {"nos.nebuly.com/gpu-partitioning": "mig"}
SPEC = {"nos.nebuly.com/spec-gpu-0-7g.80gb": "1", "nos.nebuly.com/spec-partitioning-plan": "17"}
STATUS_PLAN = "nos.nebuly.com/status-partitioning-plan"
PODS = {
    "mig-manager": {"app": "nvidia-mig-manager"},
    "nos": {"app.kubernetes.io/name": "mig-agent"},
    "hami": {"app.kubernetes.io/component": "hami-device-plugin"},
}


def metadata(api: ApiServer, kind: str) -> dict[str, str]:
    return dict(api.node(NODE)["metadata"].get(kind) or {})


def member(folder: Path, api: ApiServer, source: str, *others: str, **node: Any) -> Member:
    """An agent with this source on a Node with pods of these managers, and with what is asked."""
    for other in others:
        api.add_pod(f"{other}-1", node=NODE, labels=PODS[other])
    api.patch_node(NODE, {"metadata": node})
    return Member(folder, api, source=source)


async def refused(agent: Member, why: str) -> None:
    """Wait until the Node says that another program owns its GPUs, and no more requests come."""
    await until(lambda: (agent.status or {}).get("phase") == "Blocked")
    (problem,) = agent.rig.state.problems
    assert problem.code is Code.OWNED
    assert why in problem.message
    await agent.quiet(0.3)


async def test_nos_is_answered_anyway(tmp_path: Path, api: ApiServer, gpus: SimulatedNode) -> None:
    """Unanswered, nos would plan nothing for any node of the cluster."""
    async with member(
        tmp_path, api, "nos", "mig-manager", labels=NOS_MODE, annotations=SPEC
    ).running() as agent:
        await until(lambda: metadata(api, "annotations").get(STATUS_PLAN) == "17")
        await refused(agent, "NVIDIA's mig-manager")
        assert agent.rig.gpu().instances == ()


@pytest.mark.parametrize("others", [("nos",), ("nos", "mig-manager")])
async def test_nos_own_agent_answers_alone(
    tmp_path: Path, api: ApiServer, gpus: SimulatedNode, others: tuple[str, ...]
) -> None:
    """Where nos' mig-agent runs, it writes these keys, and nothing is written over its words."""
    async with member(
        tmp_path, api, "nos", *others, labels=NOS_MODE, annotations=SPEC
    ).running() as agent:
        await until(lambda: (agent.status or {}).get("phase") == "Blocked")
        await agent.quiet(0.3)
        found = metadata(api, "annotations")
        assert [key for key in found if key.startswith("nos.nebuly.com/status-")] == []


async def test_failed_beside_others(tmp_path: Path, api: ApiServer, gpus: SimulatedNode) -> None:
    async with member(
        tmp_path,
        api,
        "mig-config",
        "hami",
        labels={CONFIG: "all-balanced"},
        annotations=HAMI_REGISTER,
    ).running() as agent:
        await until(lambda: metadata(api, "labels").get(STATE) == "failed")
        await refused(agent, "HAMi")


async def test_mig_managers_own_label(tmp_path: Path, api: ApiServer, gpus: SimulatedNode) -> None:
    async with member(
        tmp_path,
        api,
        "mig-config",
        "mig-manager",
        labels={CONFIG: "all-balanced", STATE: "rebooting"},
    ).running() as agent:
        await refused(agent, "NVIDIA's mig-manager")
        assert metadata(api, "labels")[STATE] == "rebooting"
