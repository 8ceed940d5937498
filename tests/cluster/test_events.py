import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.events import EventIntervals, EventPublisher, NodeEvent
from tests.cluster.client.rig import running
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Fault, Freeze

pytestmark = pytest.mark.virtual_time
QUICK = EventIntervals(interval=0.01, burst=10, retry=(0.02, 0.16))
APPLIED = NodeEvent("Normal", "PlanApplied", "2 GPUs were partitioned")
BLOCKED = NodeEvent("Warning", "PlanBlocked", "GPU 0 is in use by pod default/a")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Clocked:
    """A publisher with a clock of its own for the time of day."""

    def __init__(self, access: ClusterAccess, intervals: EventIntervals = QUICK) -> None:
        self.now = NOON
        self.publisher = EventPublisher(
            access, "n", intervals=intervals, jitter=lambda: 0.5, wall=lambda: self.now
        )

    def tell(self, *events: NodeEvent) -> None:
        for event in events:
            self.publisher.publish(event)


@pytest.fixture
async def reported(access: ClusterAccess) -> AsyncIterator[Clocked]:
    reported = Clocked(access)
    async with running(reported.publisher.run()):
        yield reported


def counts(server: ApiServer) -> dict[str, int]:
    """How often each reason happened, as the server has it."""
    found: dict[str, int] = {}
    for event in server.events:
        found[event["reason"]] = found.get(event["reason"], 0) + event["count"]
    return found


def times(event: dict[str, Any]) -> tuple[datetime, datetime]:
    """When it happened first and last; the client writes UTC in two ways, both right."""
    first, last = event["firstTimestamp"], event["lastTimestamp"]
    return datetime.fromisoformat(first), datetime.fromisoformat(last)


async def test_an_event_as_kubectl_describes_it(server: ApiServer, reported: Clocked) -> None:
    reported.tell(BLOCKED)
    await until(lambda: server.events)
    [event] = server.events
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("n.")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}
    assert (event["type"], event["reason"]) == ("Warning", "PlanBlocked")
    assert event["message"] == BLOCKED.message
    assert event["source"] == {"component": "nodeagent", "host": "n"}
    assert times(event) == (NOON, NOON)
    assert event["count"] == 1


async def test_a_repeat_is_counted_in_its_event(server: ApiServer, reported: Clocked) -> None:
    for number in range(3):
        reported.now = NOON + timedelta(minutes=number)
        reported.tell(APPLIED, BLOCKED)
        expected = {"PlanApplied": number + 1, "PlanBlocked": number + 1}
        await counted(server, expected)
    assert len(server.events) == 2
    assert times(server.events[0]) == (NOON, NOON + timedelta(minutes=2))
    assert [request.method for request in server.requests] == ["POST"] * 2 + ["PATCH"] * 4


async def counted(server: ApiServer, expected: dict[str, int]) -> None:
    await until(lambda: counts(server) == expected)


async def test_a_flood_of_causes_is_bounded(server: ApiServer, access: ClusterAccess) -> None:
    reported = Clocked(access, EventIntervals(interval=0.1, burst=3, waiting=5))
    clock = asyncio.get_running_loop().time
    began = clock()
    async with running(reported.publisher.run()):
        for number in range(1000):
            reported.tell(NodeEvent("Warning", "Flood", str(number)))
        await asyncio.sleep(0.35)
        assert 1 <= len(server.requests) <= 3 + (clock() - began) / 0.1 + 1
        await until(lambda: len(server.events) == 5)
    assert {event["message"] for event in server.events} == {str(n) for n in range(995, 1000)}


async def test_what_is_remembered_is_bounded(server: ApiServer, access: ClusterAccess) -> None:
    reported = Clocked(access, EventIntervals(interval=0.001, burst=10, known=1))
    async with running(reported.publisher.run()):
        for number, event in enumerate((APPLIED, BLOCKED, BLOCKED, APPLIED), start=1):
            reported.tell(event)
            await requested(server, number)
        await until(lambda: len(server.events) == 3)
    assert [request.method for request in server.requests] == ["POST", "POST", "PATCH", "POST"]


async def requested(server: ApiServer, number: int) -> None:
    await until(lambda: len(server.requests) == number and server.requests[-1].status)


async def test_a_forgotten_event_is_made_anew(server: ApiServer, reported: Clocked) -> None:
    """Servers drop Events after an hour; the repeat is news then."""
    reported.tell(APPLIED)
    await until(lambda: server.events)
    server.drop_events()
    reported.tell(APPLIED)
    await counted(server, {"PlanApplied": 1})


@pytest.mark.parametrize("fault", [Answer(500), Freeze()])
async def test_what_fails_comes_later(
    server: ApiServer, access: ClusterAccess, reported: Clocked, fault: Fault
) -> None:
    if isinstance(fault, Freeze):
        access.answer_within = 0.5  # so the repeat comes while it is being sent
    server.faults.next(2, fault, verb="POST")
    reported.tell(BLOCKED)
    await until(lambda: server.faults.struck)
    reported.tell(BLOCKED)
    await counted(server, {"PlanBlocked": 2})
    await asyncio.sleep(0.1)
    assert 3 <= len(server.requests) <= 4  # the repeat may go in a request of its own


@pytest.mark.parametrize("code", [403, 409, 422])
async def test_what_is_refused_goes(server: ApiServer, reported: Clocked, code: int) -> None:
    server.faults.next(1, Answer(code), verb="POST")
    reported.tell(BLOCKED, APPLIED)
    await counted(server, {"PlanApplied": 1})
    assert len(server.requests) == 2


async def test_a_long_message_is_shortened(server: ApiServer, reported: Clocked) -> None:
    reported.tell(NodeEvent("Warning", "PlanRejected", "x" * 5000))
    await until(lambda: server.events)
    message = server.events[0]["message"]
    assert len(message) == 1024
    assert message.endswith("x…; in full: nodeagent events")
