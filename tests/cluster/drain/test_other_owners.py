"""Others that split the GPUs: nothing is touched while they are here, and the word of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType
from nodeagent.views.node_state import Phase, phase_of
from tests.cluster.client.rig import until
from tests.cluster.drain.rig import AFTER, MIXED, NODE, agent, asked
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer

MIG_MANAGER: dict[str, Any] = {"labels": {"app": "nvidia-mig-manager"}}
NOS_LABEL = "nos.nebuly.com/gpu-partitioning"
PODS: dict[str, dict[str, Any]] = {
    "mig-manager": MIG_MANAGER,
    "nos": {
        "labels": {"app.kubernetes.io/name": "mig-agent"},
        "spec": {"nodeSelector": {NOS_LABEL: "mig"}},
    },
    "dra": {
        "labels": {"dra-driver-nvidia-gpu-component": "kubelet-plugin"},
        "spec": {
            "containers": [
                {
                    "name": "gpus",
                    "image": "none",
                    "env": [{"name": "FEATURE_GATES", "value": "DynamicMIG=true"}],
                }
            ]
        },
    },
    "hami": {"labels": {"app.kubernetes.io/component": "hami-device-plugin"}},
    "instaslice": {"labels": {"app": "das-daemonset"}},
}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the Node, which HAMi would split if it were here."""
    async with ApiServer() as api:
        register = {"hami.io/node-nvidia-register": '[{"mode": "mig"}]'}
        api.add_node(NODE, labels=MIXED, annotations=register)
        api.add_pod("somebody", node=NODE)
        yield api


@pytest.mark.parametrize("owner", PODS)
async def test_each_is_refused_until_tolerated(
    server: ApiServer, tmp_path: Path, owner: str
) -> None:
    """It is found by its pod on this node, and named; tolerated, it blocks no plan."""
    server.add_pod(f"{owner}-1", node=NODE, **PODS[owner])
    async with agent(server, tmp_path) as it:
        [problem] = await it.round()
        assert problem.code is Code.OWNED
        assert f"default/{owner}-1" in problem.message or owner == "hami"
        assert problem.remedy
        assert not [a for a in asked(server) if not a.startswith("GET")]
    async with agent(server, tmp_path, tolerate=(owner,)) as it:
        assert await it.round() == ()


def test_who_is_refused_waits() -> None:
    """The node is blocked by another program; it has not failed."""
    owned = Problem(code=Code.OWNED, message="somebody")
    assert (
        phase_of(refused=False, plan=NodePlan(Verdict.IN_SYNC), problems=[owned]) is Phase.BLOCKED
    )


async def test_work_goes_on_when_the_other_has_gone(server: ApiServer, tmp_path: Path) -> None:
    """While refused, each round asks anew; a pod of another node does not matter."""
    server.add_pod("away", node="m", **MIG_MANAGER)
    server.add_pod("here", node=NODE, **MIG_MANAGER)
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
        assert [p.code for p in await it.round()] == [Code.OWNED]
        server.delete_pod("here")
        assert await it.round() == ()


async def test_a_label_that_goes_is_reason_to_look(server: ApiServer, tmp_path: Path) -> None:
    """Where pods cannot be listed, mig-manager's label counts; without it the loop is woken."""
    label = "nvidia.com/gpu.deploy.mig-manager"
    server.patch_node(NODE, {"metadata": {"labels": {label: "true"}}})
    server.faults.next(1, Answer(403), path="/api/v1/pods")
    async with agent(server, tmp_path) as it:
        [problem, _] = await it.round()
        assert problem.code is Code.OWNED
        assert label in problem.message
        assert EventType.UNCHECKED in [kind for kind, _ in it.reported]
        server.patch_node(
            NODE,
            {
                "metadata": {
                    "labels": {label: None},
                    "annotations": {"hami.io/node-nvidia-register": None},
                }
            },
        )
        await until(lambda: it.woken)


async def test_on_a_node_as_planned_it_is_reported_once(server: ApiServer, tmp_path: Path) -> None:
    """Nothing is refused where nothing is to do; but who is there is said, and said once."""
    server.add_pod("here", node=NODE, **MIG_MANAGER)
    async with agent(server, tmp_path) as it:
        for _ in range(3):
            assert await it.round(AFTER, AFTER) == ()
        assert [kind for kind, _ in it.reported] == [EventType.OTHER_OWNER]
        assert "mig-manager" in it.reported[0][1]
        assert it.around.problems == ()
        assert asked(server).count("GET /api/v1/pods") == 1


async def test_a_silent_server_is_not_waited_for(server: ApiServer, tmp_path: Path) -> None:
    """What was heard last counts, and it is said that it is old."""
    server.add_pod("here", node=NODE, **MIG_MANAGER)
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
        server.faults.next(1, Answer(503), path="/api/v1/pods")
        server.delete_pod("here")
        assert [p.code for p in await it.round()] == [Code.OWNED]
        assert "by the last list" in it.reported[-1][1]


async def test_nos_own_label_is_served_and_no_evidence(server: ApiServer, tmp_path: Path) -> None:
    """With the plan from nos the label of its nodes means this agent, once that is the source."""
    server.patch_node(NODE, {"metadata": {"labels": {NOS_LABEL: "mig"}}})
    server.annotate(NODE, **{"hami.io/node-nvidia-register": None})
    server.faults.next(9, Answer(403), path="/api/v1/pods")
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
        it.around.use_source("nos")
        assert await it.round() == ()
