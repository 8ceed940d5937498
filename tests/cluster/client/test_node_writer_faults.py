"""Writing to a Node while requests fail: once more, not too soon, and in the end as wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from tests.cluster.client.rig import (
    PLAN,
    STATUS,
    Follower,
    kubeconfig,
    settled,
    until,
    wanted,
    writes,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Cut, Fault, Html

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(409), faults.WriteConflict),
        (Html(200), faults.ClusterUnreachable),
        (Cut(), faults.ConnectionCut),
    ],
)
async def test_a_write_that_fails_is_made_again(
    server: ApiServer, access: ClusterAccess, fault: Fault, kind: type[ClusterFault]
) -> None:
    """Two failures, two more requests; the last wish arrives, and the fault is reported once."""
    server.faults.next(2, fault, verb="PATCH")
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("first"))
        await until(lambda: made.writing)
        assert type(writer.fault) is kind
        writer.want(wanted("last"))
        await settled(server, writer, "last")
        assert writer.fault is None
    assert len(writes(server)) == 3
    reported, end = made.writing
    assert type(reported) is kind
    assert end is None


async def test_the_limit_of_all_writers_together_is_a_refusal(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Others may have filled the Node; the server's words are reported, and no storm begins."""
    server.annotate("n", **{"other/large": "x" * 200_000})
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("y" * 100_000))
        await until(lambda: made.writing)
        await asyncio.sleep(0.2)
        assert len(writes(server)) == 1
        assert isinstance(made.writing[0], faults.RequestRefused)
        assert "annotations" in str(made.writing[0])


async def test_a_node_that_is_gone_is_waited_for(server: ApiServer, access: ClusterAccess) -> None:
    """404 ends the attempts until the follower sees a Node again."""
    made = Follower(access)
    async with made.running() as writer:
        server.faults.next(1, Answer(404), verb="PATCH")
        writer.want(wanted("late"))
        await until(lambda: made.writing)
        await asyncio.sleep(0.3)
        assert len(writes(server)) == 1
        assert isinstance(made.writing[0], faults.ObjectMissing)
        server.annotate("n", **{PLAN: "it is there"})
        await settled(server, writer, "late")


async def test_a_foreign_node_is_refused_by_policy(server: ApiServer, tmp_path: Path) -> None:
    """The policy's words reach the reader; one request."""
    server.tokens["t"] = "agent"
    server.access.own_node["t"] = "other"
    async with ClusterAccess(kubeconfig(tmp_path, server.url, token="t")) as access:
        made = Follower(access)
        async with made.running() as writer:
            writer.want(wanted("mine?"))
            await until(lambda: made.writing)
            await asyncio.sleep(0.2)
    assert len(writes(server)) == 1
    assert "ValidatingAdmissionPolicy" in str(made.writing[0])


async def test_after_an_outage_the_last_state_is_written_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Work went on meanwhile; nothing of what lies between is sent."""
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
