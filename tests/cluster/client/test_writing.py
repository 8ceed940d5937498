import asyncio
from collections.abc import AsyncIterator

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import WriteConflict
from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.keeper import WriteIntervals
from tests.cluster.client import rig
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Slow

pytestmark = pytest.mark.virtual_time
MERGE = "application/merge-patch+json"


@pytest.fixture
async def made(access: ClusterAccess) -> AsyncIterator[rig.Follower]:
    made = rig.Follower(access)
    async with made.running():
        yield made


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
    made = rig.Follower(access)
    async with made.running():
        made.follower.want(
            Wanted(
                {"nodeagent.io/same": "s", "nodeagent.io/old": None, rig.STATUS: "new"},
                {"nvidia.com/mig.config.state": "success", "nvidia.com/none": None},
            )
        )
        await rig.settled(server, made, "new")
    [request] = rig.writes(server)
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/n")
    assert request.content_type == MERGE
    assert request.body == {
        "metadata": {
            "annotations": {"nodeagent.io/old": None, rig.STATUS: "new"},
            "labels": {"nvidia.com/mig.config.state": "success"},
        }
    }
    metadata = server.node("n")["metadata"]
    assert metadata["annotations"] == {"nodeagent.io/same": "s", "other": "x", rig.STATUS: "new"}


async def test_taints_of_others_are_untouched(server: ApiServer, made: rig.Follower) -> None:
    """Each patch names its version, so that a taint which comes meanwhile is not undone."""
    key = "nodeagent.io/gpu-unhealthy"
    own, theirs = {"key": key, "effect": "NoSchedule"}, {"key": "team", "effect": "NoExecute"}
    later = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}

    def taints() -> list[dict[str, str]]:
        found: list[dict[str, str]] = server.node("n")["spec"].get("taints", [])
        return found

    server.patch_node("n", {"spec": {"taints": [theirs]}})
    await until(lambda: server.faults.watching)
    server.faults.next(1, Slow(0.2), verb="PATCH")
    made.follower.want(Wanted(taints={key: True}))
    await asyncio.sleep(0.05)
    server.patch_node("n", {"spec": {"taints": [theirs, later]}})
    await until(lambda: taints() == [theirs, later, own])
    made.follower.want(Wanted(taints={key: False}))
    await until(lambda: taints() == [theirs, later])
    for request in rig.writes(server):
        assert request.path == "/api/v1/nodes/n"
        assert request.body["metadata"]["resourceVersion"]


async def test_a_taint_comes_though_the_node_changed_unseen(
    server: ApiServer, access: ClusterAccess
) -> None:
    key = "nodeagent.io/gpu-unhealthy"
    made = rig.Follower(access, writes=WriteIntervals())
    async with made.running():
        await until(lambda: server.faults.watching)
        server.annotate("n", **{"example.com/other": "1"})
        server.heartbeat("n", "2026-01-02T12:00:00Z")
        await asyncio.sleep(0.1)
        made.follower.want(Wanted(taints={key: True}))
        await until(lambda: server.node("n")["spec"].get("taints"))
    assert len(rig.writes(server)) == 1
    assert made.writing == []


async def test_a_version_that_was_lost_is_read(server: ApiServer, access: ClusterAccess) -> None:
    """A watch may be behind: after a conflict the Node is read, and once more where that fails."""
    key = "nodeagent.io/gpu-unhealthy"
    made = rig.Follower(access, writes=WriteIntervals())
    async with made.running():
        await until(lambda: server.faults.watching)
        with server.unsent():
            server.annotate("n", **{"example.com/other": "1"})
        server.faults.next(1, Answer(500), verb="GET")
        made.follower.want(Wanted(taints={key: True}))
        await until(lambda: server.node("n")["spec"].get("taints"), within=10)
    assert [type(fault) for fault in made.writing] == [WriteConflict, type(None)]


async def test_what_another_program_keeps_undoing_is_named(
    server: ApiServer, made: rig.Follower
) -> None:
    """Twice may be by hand: it is restored, and no more."""
    made.follower.want(rig.wanted("true"))
    for number, edited in enumerate(("edited", None, "edited again"), start=1):
        await rig.settled(server, made, "true")
        assert (len(rig.writes(server)), made.follower.overwritten) == (number, ())
        server.annotate("n", **{rig.STATUS: edited})
    await until(lambda: made.overwritten)
    assert made.overwritten == [(rig.STATUS,)] == [made.follower.overwritten]


async def test_a_node_made_anew_gets_everything_again(
    server: ApiServer, made: rig.Follower
) -> None:
    made.follower.want(rig.wanted("same"))
    await rig.settled(server, made, "same")
    server.delete_node("n")
    await until(lambda: made.views[-1] is None)
    made.follower.want(rig.wanted("other"))
    await asyncio.sleep(0.15)
    assert len(rig.writes(server)) == 1
    server.add_node("n")
    await rig.settled(server, made, "other")
    for count in range(3, 7):
        server.delete_node("n")
        server.add_node("n")
        await rig.written(server, count)
        await rig.settled(server, made, "other")
    assert made.overwritten == []  # no program undid it
