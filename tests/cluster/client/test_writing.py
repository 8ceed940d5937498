import asyncio

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import WriteConflict
from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.keeper import WriteIntervals
from tests.cluster.client.rig import (
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


async def test_one_merge_patch_of_what_differs(server: ApiServer, access: ClusterAccess) -> None:
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
    server.annotate("n", **{STATUS: "there"})
    made = Follower(access)
    async with made.running() as writer:
        for _ in range(3):
            writer.want(wanted("there"))
            server.annotate("n", **{PLAN: str(_)})
            await asyncio.sleep(0.05)
        await writer.settled()
    assert len(server.requests) == 2  # the follower's


async def test_what_was_edited_by_hand_is_restored(
    server: ApiServer, access: ClusterAccess
) -> None:
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("true"))
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: "edited"})
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: None})
        await settled(server, writer, "true")
        assert len(writes(server)) == 3
        await asyncio.sleep(0.2)
        assert writer.overwritten == ()
    assert len(writes(server)) == 3
    assert made.overwritten == []


async def test_what_another_program_keeps_undoing_is_named(
    server: ApiServer, access: ClusterAccess
) -> None:
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("true"))
        for number in range(4):
            await settled(server, writer, "true")
            server.annotate("n", **{STATUS: f"edited {number}"})
        await until(lambda: made.overwritten)
        assert made.overwritten == [(STATUS,)] == [writer.overwritten]


async def test_a_node_made_anew_gets_everything_again(
    server: ApiServer, access: ClusterAccess
) -> None:
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("same"))
        await settled(server, writer, "same")
        server.delete_node("n")
        await until(lambda: made.views[-1] is None)
        writer.want(wanted("other"))
        await asyncio.sleep(0.15)
        assert len(writes(server)) == 1
        server.add_node("n")
        await settled(server, writer, "other")
        for count in range(3, 7):
            server.delete_node("n")
            server.add_node("n")
            await written(server, count)
            await settled(server, writer, "other")
    assert made.overwritten == []  # no program undid it


async def test_after_an_outage_the_last_state_is_written_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("before"))
        await settled(server, writer, "before")
        async with server.refusing():
            for number in range(50):
                writer.want(wanted(f"meanwhile {number}"))
                await asyncio.sleep(0.01)
        await settled(server, writer, "meanwhile 49")
    assert [r.body["metadata"]["annotations"][STATUS] for r in writes(server)] == [
        "before",
        "meanwhile 49",
    ]
