"""What a plan source is told while another manager splits the GPUs, and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.plan.problems import Code
from nodeagent.simulation import SimulatedNode
from tests.acceptance.cluster_rig import NODE, Member, until
from tests.simulated_cluster.api_server import ApiServer

HAMI_REGISTER = {"hami.io/node-nvidia-register": '[{"mode": "mig"}]'}
NOS_MODE = {"nos.nebuly.com/gpu-partitioning": "mig"}
SPEC = {"nos.nebuly.com/spec-gpu-0-7g.80gb": "1", "nos.nebuly.com/spec-partitioning-plan": "17"}
STATUS_PLAN = "nos.nebuly.com/status-partitioning-plan"
CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
PODS = {
    "mig-manager": {"app": "nvidia-mig-manager"},
    "nos": {"app.kubernetes.io/name": "mig-agent"},
    "hami": {"app.kubernetes.io/component": "hami-device-plugin"},
}


def metadata(api: ApiServer, kind: str) -> dict[str, str]:
    """The Node's annotations, or its labels."""
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


async def test_nos_is_answered_beside_others(
    tmp_path: Path, api: ApiServer, gpus: SimulatedNode
) -> None:
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


async def test_a_configuration_has_failed_beside_others(
    tmp_path: Path, api: ApiServer, gpus: SimulatedNode
) -> None:
    """Who waits for the state label learns that a person is needed."""
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


async def test_mig_manager_writes_its_own_label(
    tmp_path: Path, api: ApiServer, gpus: SimulatedNode
) -> None:
    """Where mig-manager runs, the state is its word."""
    async with member(
        tmp_path,
        api,
        "mig-config",
        "mig-manager",
        labels={CONFIG: "all-balanced", STATE: "rebooting"},
    ).running() as agent:
        await refused(agent, "NVIDIA's mig-manager")
        assert metadata(api, "labels")[STATE] == "rebooting"
