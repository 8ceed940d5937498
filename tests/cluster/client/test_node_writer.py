"""Writing to a Node: what differs and nothing else, seldom, and in the end as wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_writer import NodeWriter, Wanted, WriteIntervals
from nodeagent.health.reporting import Condition
from tests.cluster.client.rig import (
    PLAN,
    QUICK_WRITES,
    STATUS,
    Follower,
    kubeconfig,
    running,
    until,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Cut, Fault, Freeze, Html, Reset
from tests.simulated_cluster.journal import Request

pytestmark = pytest.mark.virtual_time
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Written:
    """A writer that follows its Node, and what it reported."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        intervals: WriteIntervals = QUICK_WRITES,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.faults: list[ClusterFault | None] = []
        self.contests: list[tuple[str, ...]] = []
        self.now = NOON
        self.writer = NodeWriter(
            access,
            "n",
            on_fault=self.faults.append,
            on_contest=self.contests.append,
            intervals=intervals,
            clock=clock or asyncio.get_running_loop().time,
            jitter=lambda: 0.5,
            wall=lambda: self.now,
        )
        self.seen = Follower(access, on_view=self.writer.observe)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NodeWriter]:
        async with running(self.seen.follower.run(), self.writer.run()):
            await until(lambda: self.seen.views)
            yield self.writer


def writes(server: ApiServer) -> list[Request]:
    """The requests that would change something."""
    return [request for request in server.requests if request.write]


def status(server: ApiServer) -> str | None:
    """The status annotation as the server has it."""
    found = server.node("n")["metadata"].get("annotations", {}).get(STATUS)
    assert isinstance(found, str | None)
    return found


def wanted(text: str) -> Wanted:
    """Want this status and nothing else."""
    return Wanted({STATUS: text})


async def settled(server: ApiServer, writer: NodeWriter, text: str) -> None:
    """The status becomes this, and nothing is left to be written."""
    await until(lambda: status(server) == text)
    async with asyncio.timeout(30):
        await writer.settled()


async def written(server: ApiServer, count: int) -> None:
    """So many requests were made to write."""
    await until(lambda: len(writes(server)) == count)


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
    made = Written(access)
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


async def test_nothing_is_written_when_nothing_differs(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Wanting the same again, and events that concern others, cost no request."""
    server.annotate("n", **{STATUS: "there"})
    made = Written(access)
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
    made = Written(access)
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


async def test_neither_kind_of_write_starves_the_other(
    server: ApiServer, access: ClusterAccess
) -> None:
    """While the annotation changes faster than it can be written, the condition is written too."""
    made = Written(access)
    async with made.running() as writer:
        for number in range(60):
            condition = Condition("True", "R", "")
            writer.want(Wanted({STATUS: str(number)}, conditions={"GPUHealthy": condition}))
            await asyncio.sleep(0.01)
    assert any(request.path.endswith("/status") for request in writes(server))


# --- how often ----------------------------------------------------------------------------------


async def test_the_last_wish_wins_and_writes_are_spaced(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A hundred wishes in half a second are few requests; the last one wins."""
    made = Written(access)
    clock = asyncio.get_running_loop().time
    async with made.running() as writer:
        begin = clock()
        for number in range(100):
            writer.want(wanted(str(number)))
            await asyncio.sleep(0.005)
        await settled(server, writer, "99")
        passed = clock() - begin
    # Arrival times at the server prove no gap: the first request may have been delayed.
    assert len(writes(server)) <= 1 + passed / QUICK_WRITES.interval


async def test_a_wish_after_a_quiet_time_waits_for_nothing(
    server: ApiServer, access: ClusterAccess
) -> None:
    """And with a burst of two neither does the one behind it."""
    made = Written(access, intervals=WriteIntervals(interval=60.0, burst=2))
    async with made.running() as writer:
        before = asyncio.get_running_loop().time()
        writer.want(wanted("Working"))
        await settled(server, writer, "Working")
        writer.want(wanted("InSync"))
        await settled(server, writer, "InSync")
        assert asyncio.get_running_loop().time() - before < 1.0
    assert len(writes(server)) == 2


async def test_changes_soon_after_each_other_are_written_at_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    """At the real rate limits, with a stopped clock: no write waits."""
    made = Written(access, intervals=WriteIntervals(), clock=lambda: 0.0)
    async with made.running() as writer:
        for word in ("Working", "InSync", "Blocked", "InSync again"):
            writer.want(wanted(word))
            await settled(server, writer, word)
    assert len(writes(server)) == 4


# --- others who write ---------------------------------------------------------------------------


async def test_what_was_edited_by_hand_is_restored(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Changed or taken away: it comes back, with one request each time."""
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("true"))
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: "edited"})
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: None})
        await settled(server, writer, "true")
        assert len(writes(server)) == 3
        await asyncio.sleep(0.2)
        assert writer.contested == ()
    assert len(writes(server)) == 3
    assert made.contests == []


async def test_a_quarrel_about_a_key_gets_slower(server: ApiServer, access: ClusterAccess) -> None:
    """A program that always writes back at once does not make us write at full rate for ever."""
    intervals = replace(QUICK_WRITES, interval=0.01, retry=(0.1, 1.0))
    made = Written(access, intervals=intervals)

    async def quarrel() -> None:
        while True:
            if status(server) == "ours":
                server.annotate("n", **{STATUS: "theirs"})
            await asyncio.sleep(0.001)

    async with made.running() as writer, running(quarrel()):
        writer.want(wanted("ours"))
        await asyncio.sleep(1.5)
        # After waits of half of 0.1, 0.2, 0.4, 0.8 seconds; at full rate it would be over 100.
        assert 3 <= len(writes(server)) <= 7
        assert made.contests == [(STATUS,)]
        assert writer.contested == (STATUS,)
        count = len(writes(server))
        writer.want(wanted("new"))  # a new wish does not wait for the quarrel
        await until(lambda: len(writes(server)) > count, seconds=0.2)


async def test_a_node_made_anew_gets_everything_again(
    server: ApiServer, access: ClusterAccess
) -> None:
    """What is wanted of a Node is wanted of its successor."""
    made = Written(access)
    async with made.running() as writer:
        writer.want(wanted("same"))
        await settled(server, writer, "same")
        server.delete_node("n")
        await until(lambda: made.seen.views[-1] is None)
        writer.want(wanted("other"))
        await asyncio.sleep(0.15)
        assert len(writes(server)) == 1
        server.add_node("n")
        await settled(server, writer, "other")
    assert len(writes(server)) == 2


async def test_news_older_than_the_own_write_is_passed_over(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A watch may tell late what was before the write; that is no reason to write again."""
    made = Written(access)
    async with made.running() as writer:
        old = made.seen.views[-1]
        assert old is not None
        writer.want(wanted("new"))
        await settled(server, writer, "new")
        writer.observe(old)
        await asyncio.sleep(0.2)
        assert len(writes(server)) == 1


# --- faults -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, faults.RequestRefused), (422, faults.RequestRefused), (403, faults.NotAllowed)],
)
async def test_what_is_refused_for_good_is_not_repeated_soon(
    server: ApiServer, access: ClusterAccess, code: int, kind: type[ClusterFault]
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
    assert type(first) is kind
    assert "as ordered by the test" in str(first)
    assert end is None


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


# --- wishes that are refused --------------------------------------------------------------------


async def test_too_large_an_annotation_is_an_answer_and_no_request(
    server: ApiServer, access: ClusterAccess
) -> None:
    """What the Node has stays."""
    made = Written(access)
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
        Written(access).writer.want(unseen)
