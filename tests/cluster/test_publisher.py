import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.drain.hooks import ClusterHooks
from nodeagent.cluster.plan_sources.node_source import NodeSource
from nodeagent.cluster.publisher import NodePublisher, PublisherIntervals
from nodeagent.plan.plan import Policy
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.plan_update import PlanUpdate
from nodeagent.settings import KubernetesSettings
from nodeagent.views.node_state import NodeState, Phase
from tests.cluster.client.rig import QUICK, QUICK_WRITES, running
from tests.machine_load import until
from tests.rig import SOON
from tests.simulated_cluster.api_server import ApiServer

pytestmark = pytest.mark.virtual_time
PACE = PublisherIntervals(patience=0.15, first_answer=0.1, follow=QUICK, write=QUICK_WRITES)


class Labelling(NodeSource):
    def __init__(self) -> None:
        self.offers: list[object] = []
        super().__init__(self.offers.append, rounds=lambda: 0)
        self.views: list[NodeView | None] = []

    def observe(self, view: NodeView | None) -> None:
        self.views.append(view)

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        return Wanted(labels={"nvidia.com/first": state.phase.value})


class CountingHooks(ClusterHooks):
    """Counts how often the server answered again; what is to be put back is set."""

    outages = 0
    is_unfinished = False

    def server_answers(self) -> None:
        self.outages += 1


class PublishedNode:
    def __init__(self, server: ApiServer, access: ClusterAccess, node: str = "n") -> None:
        self.server = server
        self.events = EventLog()
        self.hooks = CountingHooks(
            access,
            node,
            settings=KubernetesSettings(),
            source="annotation",
            policy=Policy(),
            wake=lambda _: None,
            report=lambda *_: None,
        )
        self.publisher = NodePublisher(access, node, self.hooks, events=self.events, intervals=PACE)

    def publish(self, phase: Phase, note: str = "") -> None:
        now = datetime.now(UTC)
        state = NodeState("n", "file", phase, note=note, observed_at=now, digest="sha256:0")
        self.publisher.publish(state, None)

    @property
    def phase(self) -> str:
        written = self.server.node("n")["metadata"].get("annotations", {})
        return str(written.get("nodeagent.io/status", "")).partition('"phase":"')[2].split('"')[0]

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.server.node("n")["metadata"].get("labels") or {})

    async def until(self, phase: str) -> None:
        await until(lambda: self.phase == phase)

    async def shows(self, phase: Phase) -> None:
        """Published, and written."""
        self.publish(phase)
        await self.until(phase.value)

    def writes(self) -> int:
        return sum(r.write and r.path.endswith("/nodes/n") for r in self.server.requests)


@pytest.fixture
async def member(server: ApiServer, access: ClusterAccess) -> AsyncIterator[PublishedNode]:
    made = PublishedNode(server, access)
    async with running(made.publisher.run()):
        yield made


async def test_a_quick_change_is_one_write(member: PublishedNode) -> None:
    await member.shows(Phase.IN_SYNC)
    before = member.writes()
    member.publish(Phase.WORKING)
    await asyncio.sleep(0.02)
    await member.shows(Phase.BLOCKED)
    assert member.writes() == before + 1


async def test_work_that_lasts_is_published(member: PublishedNode) -> None:
    await member.shows(Phase.IN_SYNC)
    for _ in range(2):
        member.publish(Phase.WORKING)
        member.publish(Phase.WORKING, note="further")
        await asyncio.sleep(PACE.patience - 0.02)
        assert member.phase == "InSync"
        await member.until("Working")
        await member.shows(Phase.IN_SYNC)


async def test_the_source_says_success_when_all_is_put_back(member: PublishedNode) -> None:
    member.publisher.source = Labelling()
    member.hooks.is_unfinished = True
    await member.shows(Phase.IN_SYNC)
    assert member.labels["nvidia.com/first"] == "Working"
    member.hooks.is_unfinished = False
    member.hooks.restored.publish(None)
    await until(lambda: member.labels["nvidia.com/first"] == "InSync")
    member.hooks.is_unfinished = True
    member.publish(Phase.FAILED)
    await until(lambda: member.labels["nvidia.com/first"] == "Failed")


async def test_the_same_twice_is_not_written(member: PublishedNode) -> None:
    await member.shows(Phase.IN_SYNC)
    await asyncio.sleep(0.1)
    before = len(member.server.requests)
    for _ in range(5):
        member.publish(Phase.IN_SYNC)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(member.server.requests) == before


async def test_without_an_answer_it_says_so(server: ApiServer, access: ClusterAccess) -> None:
    lonely, source = PublishedNode(server, access), Labelling()
    lonely.publisher.source = source
    async with contextlib.AsyncExitStack() as stack:
        async with server.refusing():
            await stack.enter_async_context(running(lonely.publisher.run()))
            await until(lambda: source.offers and lonely.publisher.state.problem)
            assert not lonely.publisher.state.reachable
            assert source.views == []  # that there is no Node is not known
        await until(lambda: lonely.publisher.state.reachable)
        assert lonely.publisher.state.registered
        reported = len(source.offers)
        await asyncio.sleep(2 * PACE.first_answer)
        assert len(source.offers) == reported


async def test_a_node_that_is_made_anew_is_reported(
    server: ApiServer, member: PublishedNode
) -> None:
    uids: list[str | None] = []
    member.publisher.offered_by_node.subscribe(lambda _: uids.append(member.publisher.node_uid))
    await until(lambda: uids)
    server.delete_node("n")
    server.add_node("n")
    await until(lambda: len(uids) == 3)
    first, gone, second = uids
    assert gone is None
    assert first != second


async def test_another_reason_does_not_change_since_when(member: PublishedNode) -> None:
    publisher, server = member.publisher, member.server
    async with server.refusing():
        await until(lambda: publisher.state.problem and not publisher.state.reachable)
        since = publisher.state.since
        server.access.withheld.add(("list", "nodes"))
    await until(lambda: "forbidden" in str(publisher.state.problem))
    assert (publisher.state.reachable, publisher.state.since) == (False, since)
    server.access.withheld.clear()
    await until(lambda: publisher.state.reachable)
    assert publisher.state.since != since


async def test_the_end_of_an_outage_is_reported(member: PublishedNode) -> None:
    await member.shows(Phase.IN_SYNC)
    await member.server.stop()
    await until(lambda: not member.publisher.state.reachable)
    assert member.hooks.outages == 0
    await member.server.start()
    await until(lambda: member.hooks.outages)
    assert member.hooks.outages == 1
    kinds = {event.type for event in member.events.events}
    assert kinds == {EventType.CLUSTER_FAULT, EventType.CLUSTER_RETURNED}


async def test_a_node_that_cannot_be_written_is_reported(member: PublishedNode) -> None:
    member.server.access.withheld.add(("patch", "nodes"))
    member.publish(Phase.IN_SYNC)
    await until(lambda: member.publisher.state.problem)
    member.server.access.withheld.clear()
    await member.until("InSync")
    await until(lambda: not member.publisher.state.problem)
    fault, returned = member.events.events
    assert (fault.type, returned.type) == (EventType.CLUSTER_FAULT, EventType.CLUSTER_RETURNED)
    assert "cannot be written" in fault.message
    assert "can be written" in returned.message


async def test_the_last_state_is_written_at_the_end(member: PublishedNode) -> None:
    await member.shows(Phase.IN_SYNC)
    member.publish(Phase.WORKING)
    member.events.close()
    await member.publisher.flush(within=SOON)
    assert member.phase == "Working"


async def test_the_end_does_not_wait_for_a_server_that_is_gone(
    server: ApiServer, access: ClusterAccess
) -> None:
    lonely = PublishedNode(server, access)
    async with server.refusing():
        lonely.publish(Phase.IN_SYNC)
        async with asyncio.timeout(1.0):
            await lonely.publisher.flush(within=SOON)
