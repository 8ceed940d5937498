"""Writing to a Node while requests fail: once more, not too soon, and in the end as wanted."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import Wanted
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.health.reporting import Condition
from tests.cluster.client.rig import PLAN, STATUS, kubeconfig, until
from tests.cluster.client.writer_rig import Written, settled, status, wanted, writes
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Cut, Fault, Freeze, Html, Reset

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(401), faults.NotAuthenticated),
        (Answer(409), faults.WriteConflict),
        (Answer(429), faults.ServerBusy),
        (Answer(500), faults.ClusterUnreachable),
        (Answer(503), faults.ServerBusy),
        (Html(), faults.ClusterUnreachable),
        (Html(200), faults.ClusterUnreachable),
        (Reset(), faults.ClusterUnreachable),
        (Cut(), faults.ConnectionCut),
        (Cut(clean=True), faults.ClusterUnreachable),
        (Freeze(), faults.ClusterUnreachable),
    ],
)
async def test_a_write_that_fails_is_made_again(
    server: ApiServer, access: ClusterAccess, fault: Fault, kind: type[ClusterFault]
) -> None:
    """Two failures, two more requests; the last wish arrives, and the fault is reported once."""
    if isinstance(fault, Freeze):
        access.answer_within = 0.5
    server.faults.next(2, fault, verb="PATCH")
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("first"))
        await until(lambda: made.faults)
        assert type(writer.fault) is kind
        writer.want(wanted("last"))
        await settled(server, writer, "last")
        assert writer.fault is None
    assert len(writes(server)) == 3
    reported, end = made.faults
    assert type(reported) is kind
    assert end is None


async def test_retry_after_is_obeyed(server: ApiServer, access: ClusterAccess) -> None:
    """A server that asks for a second of rest gets it, whatever is wanted meanwhile."""
    server.faults.next(1, Answer(429, retry_after=1), verb="PATCH")
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("first"))
        await until(lambda: made.faults)
        writer.want(wanted("last"))
        await settled(server, writer, "last")
    first, second = writes(server)
    assert second.time - first.time >= 1.0


@pytest.mark.parametrize("code", [400, 422])
async def test_what_is_refused_for_good_is_not_repeated_soon(
    server: ApiServer, access: ClusterAccess, code: int
) -> None:
    """One request; another wish is tried at once, the same one only after a long wait."""
    server.faults.next(1, Answer(code), verb="PATCH")
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("bad"))
        await until(lambda: made.faults)
        server.annotate("n", **{PLAN: "something else"})
        await asyncio.sleep(0.3)
        assert len(writes(server)) == 1
        await settled(server, writer, "bad")  # once the long wait is over
        assert len(writes(server)) == 2
        server.faults.next(1, Answer(code), verb="PATCH")
        writer.want(wanted("worse"))
        await until(lambda: len(made.faults) == 3)
        writer.want(wanted("good"))
        await settled(server, writer, "good")
    assert len(writes(server)) == 4
    first, end, *_ = made.faults
    assert type(first) is faults.RequestRefused
    assert "as ordered by the test" in str(first)
    assert end is None


async def test_what_is_forbidden_is_repeated_ever_more_seldom(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Up to the long wait, as rights may be mended; after a success the pauses begin anew."""
    server.access.withheld.add(("patch", "nodes"))
    made = Written(access, intervals=WriteIntervals())
    async with made.running() as writer:
        writer.want(wanted("forbidden"))
        await asyncio.sleep(3000.0)
        times = [request.time for request in writes(server)]
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses[0] < 2.0
        assert all(after > 1.5 * before for before, after in pairwise(pauses[:9]))
        assert all(100.0 < pause < 310.0 for pause in pauses[9:])
        assert [type(fault) for fault in made.faults] == [faults.NotAllowed]
        server.access.withheld.clear()
        await asyncio.sleep(300.0)
        assert status(server) == "forbidden"
        server.faults.next(1, Answer(403), verb="PATCH")
        writer.want(wanted("soon"))
        await until(lambda: status(server) == "soon", seconds=5.0)


async def test_a_server_that_forbids_at_its_start_is_asked_again_soon(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Until it has read the roles it answers 403 to what is allowed."""
    server.faults.next(1, Answer(403), verb="PATCH")
    made = Written(access, intervals=WriteIntervals())
    async with made.running() as writer:
        writer.want(wanted("newest"))
        await until(lambda: status(server) == "newest", seconds=5.0)
        assert [type(fault) for fault in made.faults] == [faults.NotAllowed, type(None)]


async def test_the_limit_of_all_writers_together_is_a_refusal(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Others may have filled the Node; the server's words are reported, and no storm begins."""
    server.annotate("n", **{"other/large": "x" * 200_000})
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("y" * 100_000))
        await until(lambda: made.faults)
        await asyncio.sleep(0.2)
        assert len(writes(server)) == 1
        assert isinstance(made.faults[0], faults.RequestRefused)
        assert "annotations" in str(made.faults[0])


async def test_a_node_that_is_gone_is_waited_for(server: ApiServer, access: ClusterAccess) -> None:
    """404 ends the attempts until the follower sees a Node again."""
    made = Written(access)
    async with made.running() as writer:
        server.faults.next(1, Answer(404), verb="PATCH")
        writer.want(wanted("late"))
        await until(lambda: made.faults)
        await asyncio.sleep(0.3)
        assert len(writes(server)) == 1
        assert isinstance(made.faults[0], faults.ObjectMissing)
        server.annotate("n", **{PLAN: "it is there"})
        await settled(server, writer, "late")


async def test_a_node_that_was_said_to_be_gone_and_is_not(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A 404 that a proxy in between made up: after a while it is tried again, without any news."""
    made = Written(access)
    async with made.running() as writer:
        server.faults.next(1, Answer(404), verb="PATCH")
        writer.want(wanted("late"))
        await settled(server, writer, "late")
        assert len(writes(server)) == 2


async def test_a_foreign_node_is_refused_by_policy(server: ApiServer, tmp_path: Path) -> None:
    """The policy's words reach the reader; one request."""
    server.tokens["t"] = "agent"
    server.access.own_node["t"] = "other"
    async with ClusterAccess(kubeconfig(tmp_path, server.url, token="t")) as access:
        made = Written(access)
        async with made.running() as writer:
            writer.want(wanted("mine?"))
            await until(lambda: made.faults)
            await asyncio.sleep(0.2)
    assert len(writes(server)) == 1
    assert "ValidatingAdmissionPolicy" in str(made.faults[0])


async def test_after_an_outage_the_last_state_is_written_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Work went on meanwhile; nothing of what lies between is sent."""
    made = Written(access)
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


@pytest.mark.parametrize("code", [403, 422])
async def test_one_kind_of_write_does_not_hide_that_another_is_refused(
    server: ApiServer, access: ClusterAccess, code: int
) -> None:
    """The annotation is written and the condition is not: that stays the fault until it is."""
    path, condition = "/api/v1/nodes/n/status", Condition("True", "R", "")
    server.faults.next(100, Answer(code), verb="PATCH", path=path)
    made = Written(access)
    async with made.running() as writer:
        writer.want(Wanted({STATUS: "a"}, conditions={"GPUHealthy": condition}))
        await until(lambda: made.faults and status(server) == "a")
        writer.want(Wanted({STATUS: "b"}, conditions={"GPUHealthy": condition}))
        await until(lambda: status(server) == "b")
        await asyncio.sleep(2.0)  # the condition is tried again meanwhile
        refused = writer.fault
        assert isinstance(refused, faults.NotAllowed | faults.RequestRefused)
        assert [type(fault) for fault in made.faults] == [type(refused)]
        server.faults.clear()
        await until(lambda: writer.fault is None)
    assert made.faults[1:] == [None]


async def test_a_wish_that_was_refused_and_is_taken_back_is_no_fault(
    server: ApiServer, access: ClusterAccess
) -> None:
    """The next write of another kind ends it: nothing is left that could be refused."""
    server.faults.next(1, Answer(422), verb="PATCH", path="/api/v1/nodes/n/status")
    made = Written(access)
    async with made.running() as writer:
        writer.want(Wanted(conditions={"GPUHealthy": Condition("True", "R", "")}))
        await until(lambda: made.faults)
        writer.want(wanted("alone"))
        await settled(server, writer, "alone")
        assert writer.fault is None
