"""Writing to a Node: what differs and nothing else, seldom, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import WriteConflict
from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.health.reporting import Condition
from tests.cluster.client.rig import (
    NOON,
    PLAN,
    STATUS,
    Follower,
    settled,
    until,
    wanted,
    writes,
    written,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Slow

pytestmark = pytest.mark.virtual_time
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


# --- what is written ----------------------------------------------------------------------------


async def test_one_merge_patch_of_what_differs(server: ApiServer, access: ClusterAccess) -> None:
    """Keys that are as wanted are left out, keys of others are untouched, None takes away."""
    server.patch_node(
        "n",
        {
            "metadata": {
                "annotations": {"nodeagent.io/same": "s", "nodeagent.io/old": "o", "other": "x"},
                "labels": {"nvidia.com/mig.config.state": "pending"},
            }
        },
    )
    made = Follower(access)
    async with made.running() as writer:
        writer.want(
            Wanted(
                {"nodeagent.io/same": "s", "nodeagent.io/old": None, STATUS: "new"},
                {"nvidia.com/mig.config.state": "success", "nvidia.com/none": None},
            )
        )
        await settled(server, writer, "new")
    [request] = writes(server)
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n")
    assert request.content_type == MERGE
    assert request.body == {
        "metadata": {
            "annotations": {"nodeagent.io/old": None, STATUS: "new"},
            "labels": {"nvidia.com/mig.config.state": "success"},
        }
    }
    metadata = server.node("n")["metadata"]
    assert metadata["annotations"] == {"nodeagent.io/same": "s", "other": "x", STATUS: "new"}


async def test_taints_of_others_are_untouched(server: ApiServer, access: ClusterAccess) -> None:
    """Each patch names the version that it was made for, so that a taint which comes meanwhile is
    not undone.
    """
    key = "nodeagent.io/gpu-unhealthy"
    own, theirs = {"key": key, "effect": "NoSchedule"}, {"key": "team", "effect": "NoExecute"}
    later = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}

    def taints() -> list[dict[str, str]]:
        found: list[dict[str, str]] = server.node("n")["spec"].get("taints", [])
        return found

    server.patch_node("n", {"spec": {"taints": [theirs]}})
    made = Follower(access)
    async with made.running() as writer:
        await until(lambda: server.faults.watching)
        server.faults.next(1, Slow(0.2), verb="PATCH")
        writer.want(Wanted(taints={key: True}))
        await asyncio.sleep(0.05)
        server.patch_node("n", {"spec": {"taints": [theirs, later]}})
        await until(lambda: taints() == [theirs, later, own])
        writer.want(Wanted(taints={key: False}))
        await until(lambda: taints() == [theirs, later])
    for request in writes(server):
        assert request.path == "/api/v1/nodes/n"
        assert request.body["metadata"]["resourceVersion"]


async def test_a_taint_comes_though_the_node_changed_unseen(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Heartbeats and others' annotations change the version that a taint's patch names, and no
    view: it is known all the same.
    """
    key = "nodeagent.io/gpu-unhealthy"
    made = Follower(access, writes=WriteIntervals())
    async with made.running() as writer:
        await until(lambda: server.faults.watching)
        server.annotate("n", **{"example.com/other": "1"})
        server.heartbeat("n", "2026-01-02T12:00:00Z")
        await asyncio.sleep(0.1)
        writer.want(Wanted(taints={key: True}))
        await until(lambda: server.node("n")["spec"].get("taints"))
    assert len(writes(server)) == 1
    assert made.writing == []


async def test_a_version_that_was_lost_is_read(server: ApiServer, access: ClusterAccess) -> None:
    """A watch may be behind: after a conflict the Node is read, and once more where that fails."""
    key = "nodeagent.io/gpu-unhealthy"
    made = Follower(access, writes=WriteIntervals())
    async with made.running() as writer:
        await until(lambda: server.faults.watching)
        with server.unsent():
            server.annotate("n", **{"example.com/other": "1"})
        server.faults.next(1, Answer(500), verb="GET")
        writer.want(Wanted(taints={key: True}))
        await until(lambda: server.node("n")["spec"].get("taints"), seconds=10)
    assert [type(fault) for fault in made.writing] == [WriteConflict, type(None)]


async def test_nothing_is_written_when_nothing_differs(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Wanting the same again, and events that concern others, cost no request."""
    server.annotate("n", **{STATUS: "there"})
    made = Follower(access)
    async with made.running() as writer:
        for _ in range(3):
            writer.want(wanted("there"))
            server.annotate("n", **{PLAN: str(_)})
            await asyncio.sleep(0.05)
        await writer.settled()
    assert len(server.requests) == 2  # the follower's


async def test_conditions_go_through_the_status_and_keep_their_time(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A strategic merge by type; the time of the last change changes with the status only."""
    made = Follower(access)
    kind = "GPUPartitionsReady"
    async with made.running() as writer:
        for condition, hour in (
            (Condition("True", "InSync", ""), 12),
            (Condition("True", "InSync", "all of them"), 13),
            (Condition("False", "Blocked", "in use"), 14),
        ):
            made.now = NOON.replace(hour=hour)
            writer.want(Wanted(conditions={kind: condition}))
            await written(server, hour - 11)
            await writer.settled()
    entries = [request.body["status"]["conditions"] for request in writes(server)]
    assert [len(found) for found in entries] == [1, 1, 1]
    times = [(e["lastHeartbeatTime"][11:13], e["lastTransitionTime"][11:13]) for [e] in entries]
    assert times == [("12", "12"), ("13", "12"), ("14", "14")]
    for request in writes(server):
        assert (request.path, request.content_type) == ("/api/v1/nodes/n/status", STRATEGIC)
    conditions = {c["type"]: c for c in server.node("n")["status"]["conditions"]}
    assert set(conditions) == {"Ready", kind}
    assert conditions[kind]["reason"] == "Blocked"


# --- how often ----------------------------------------------------------------------------------


async def test_changes_soon_after_each_other_are_written_at_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Up to ten: then each waits for its turn."""
    made = Follower(access, writes=replace(WriteIntervals(), interval=60.0))
    clock = asyncio.get_running_loop().time
    async with made.running() as writer:
        begun = clock()
        for number in range(10):
            writer.want(wanted(str(number)))
            await settled(server, writer, str(number))
        assert clock() - begun < 50.0
        writer.want(wanted("last"))
        await settled(server, writer, "last")
        assert clock() - begun >= 59.0


# --- wishes that are refused --------------------------------------------------------------------


async def test_too_large_an_annotation_is_an_answer_and_no_request(
    server: ApiServer, access: ClusterAccess
) -> None:
    """What the Node has stays."""
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("small"))
        await settled(server, writer, "small")
        answer = writer.want(wanted("x" * 200_000))
        assert answer == {STATUS: len(STATUS) + 200_000}
        await asyncio.sleep(0.2)
    assert len(writes(server)) == 1


@pytest.mark.parametrize(
    "unseen",
    [
        Wanted({"other/key": "x"}),
        Wanted(labels={"other": None}),
        Wanted(conditions={"Ready": Condition("True", "", "")}),
    ],
)
async def test_what_views_leave_out_cannot_be_wanted(access: ClusterAccess, unseen: Any) -> None:
    """It would be written again and again, because it would never be seen."""
    with pytest.raises(ValueError, match="wanted but never seen"):
        Follower(access).follower.want(unseen)
