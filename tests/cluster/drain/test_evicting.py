import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodeagent.plan.desired import WhenInUse
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from tests.cluster.drain import rig
from tests.machine_load import until
from tests.plan.cards import with_instances
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Slow

pytestmark = pytest.mark.virtual_time
EVICT = replace(rig.TWO_HALVES, when_in_use=WhenInUse.EVICT)
GONE = "pods that were in the way have gone"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the Node and two pods on it that linger when they have to go."""
    async with ApiServer() as api:
        api.add_node(rig.NODE, labels=rig.MIXED)
        for name in ("a", "b"):
            api.add_pod(name, namespace="team", node=rig.NODE, lingers=True)
        yield api


def held(*pods: str) -> Gpu:
    return rig.used(with_instances(rig.EMPTY, [("2g.20gb", 0), ("2g.20gb", 4)]), *pods)


def settle(it: rig.Agent, gpu: Gpu) -> None:
    """A round has ended, and this is what was seen in it."""
    it.around.after_round(*rig.judged([gpu], EVICT))


def evicted(server: ApiServer) -> list[str]:
    return [str(eviction["metadata"]["name"]) for eviction in server.evictions]


def cordoned(server: ApiServer) -> bool:
    by_the_agent = "nodeagent.io/cordoned" in rig.marks(server)
    assert bool(server.node(rig.NODE)["spec"].get("unschedulable")) == by_the_agent
    return by_the_agent


async def test_pods_in_the_way_go_behind_a_cordon(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path, cordon=True) as it:
        settle(it, held("a", "b"))
        await until(lambda: evicted(server) == ["a", "b"])
        assert cordoned(server)
        settle(it, held("a", "b"))
        await asyncio.sleep(0.05)
        server.pods.gone("a", "team")
        await asyncio.sleep(0.05)
        assert GONE not in it.woken
        server.pods.gone("b", "team")
        await until(lambda: GONE in it.woken)
        assert cordoned(server)
        settle(it, rig.AFTER)
        await until(lambda: not cordoned(server))
        assert evicted(server) == ["a", "b"]
        assert [kind for kind, _ in it.reported] == [EventType.EVICTED] * 2
        first, last = it.changes[0], it.changes[-1]
        assert first.startswith("the Node is changed: unschedulable; ")
        assert last.startswith("the Node is changed: schedulable; ")
        assert last.endswith("(the GPUs are changed)")
        assert not [request for request in rig.asked(server) if request.startswith("DELETE")]


async def test_the_cordon_stays_for_pods_that_leave_while_the_agent_is_restarted(
    server: ApiServer, tmp_path: Path
) -> None:
    """Else a new pod comes to what is to change, and is evicted in its turn."""
    async with rig.agent(server, tmp_path, cordon=True) as it:
        settle(it, held("a"))
        await until(lambda: evicted(server) == ["a"])
        assert cordoned(server)
    async with rig.agent(server, tmp_path, cordon=True) as it:
        settle(it, held("a"))
        await asyncio.sleep(1.0)
        assert cordoned(server)
        assert it.changes == []
        server.pods.gone("a", "team")
        settle(it, rig.AFTER)
        await until(lambda: not cordoned(server))
    assert evicted(server) == ["a"]


async def test_a_budget_is_kept_said_and_asked_again(server: ApiServer, tmp_path: Path) -> None:
    server.pods.budgets["team", "a"] = "at-least-one"
    async with rig.agent(server, tmp_path, cordon=True) as it:
        settle(it, held("a"))
        await until(lambda: it.around.problems)
        [problem] = it.around.problems
        assert problem.code is Code.IN_USE
        assert "team/a" in problem.message
        assert "The disruption budget at-least-one needs 1 healthy pods" in problem.message
        await until(lambda: not cordoned(server))
        for _ in range(20):
            settle(it, held("a"))
        tries = "POST /api/v1/namespaces/team/pods/a/eviction"
        assert rig.asked(server).count(tries) == 1, "looks are no reason to ask again at once"
        server.pods.budgets.clear()
        await until(lambda: evicted(server) == ["a"])
        assert rig.asked(server).count(tries) <= 4
        await until(lambda: it.around.problems == ())


RIGHTS = "manifests/components/evictions/rights.yaml"


@pytest.mark.parametrize(
    ("answer", "way"),
    [
        ('pods "a" is forbidden: User "x" cannot create resource "pods/eviction"', RIGHTS),
        ("ValidatingAdmissionPolicy 'x' denied request: no", "`kubectl delete pod -n team a`"),
    ],
)
async def test_a_refusal_names_what_mends_it(
    answer: str, way: str, server: ApiServer, tmp_path: Path
) -> None:
    server.faults.next(9, Answer(403, message=answer), path="*/pods/a/eviction")
    async with rig.agent(server, tmp_path) as it:
        settle(it, held("a"))
        await until(lambda: it.around.problems)
        [problem] = it.around.problems
        assert problem.message.startswith("pod team/a is not evicted: it uses ")
        assert answer in problem.message
        assert way in problem.remedy


async def test_another_plan_does_not_wait_for_the_budget_of_the_last(
    server: ApiServer, tmp_path: Path
) -> None:
    """Its pods are asked at once, and soon again."""
    server.pods.budgets |= {("team", "a"): "x", ("team", "b"): "x"}
    async with rig.agent(server, tmp_path, cordon=True) as it:

        def tries(pod: str) -> int:
            return rig.asked(server).count(f"POST /api/v1/namespaces/team/pods/{pod}/eviction")

        settle(it, held("a"))
        await until(lambda: tries("a") == 4)
        settle(it, rig.AFTER)
        await until(lambda: it.codes() == [])
        settle(it, held("-", "b"))
        began = asyncio.get_running_loop().time()
        await until(lambda: tries("b") == 2)
        assert asyncio.get_running_loop().time() - began < 0.3


async def test_no_pod_is_evicted_for_a_plan_that_is_gone(server: ApiServer, tmp_path: Path) -> None:
    """What is asked for may be another thing while the node is being cordoned."""
    async with rig.agent(server, tmp_path, cordon=True) as it:
        server.faults.next(1, Slow(0.2), path=f"*/nodes/{rig.NODE}")
        settle(it, held("a", "b"))
        await until(lambda: f"PATCH /api/v1/nodes/{rig.NODE}" in rig.asked(server))
        settle(it, rig.AFTER)
        await asyncio.sleep(0.5)
        assert evicted(server) == []
        assert not cordoned(server)
        settle(it, held("a"))
        await until(lambda: evicted(server) == ["a"])
        await it.around.shut_down(within=5)
        assert not cordoned(server)


async def test_no_pod_is_evicted_in_vain(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path) as it:
        server.add_pod("manager", node=rig.NODE, labels={"app": "nvidia-mig-manager"})
        settle(it, held("a"))
        await until(lambda: it.codes() == [Code.OWNED])
        evaluation, observed = rig.judged([held("a")], EVICT)
        todo = rig.todo_of(evaluation)
        assert await it.around.objections(evaluation, todo, observed)
        settle(it, held("a"))
        await until(lambda: it.codes() == [])  # rounds say it now
        assert evicted(server) == []
        server.delete_pod("manager")
        assert await it.around.objections(evaluation, todo, observed) == ()
        settle(it, held("a"))
        await until(lambda: evicted(server) == ["a"])


async def test_a_server_that_does_not_answer(server: ApiServer, tmp_path: Path) -> None:
    server.faults.next(2, Answer(503), path="/api/v1/pods")
    async with rig.agent(server, tmp_path) as it:
        settle(it, held("a"))
        await until(lambda: it.codes() == [Code.CLUSTER])
        await until(lambda: evicted(server) == ["a"])
        await until(lambda: it.around.problems == ())


async def test_pods_that_are_gone_already_make_no_circle(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path) as it:
        settle(it, held("nobody"))
        await until(lambda: it.woken.count(GONE) == 3)
        assert len([request for request in rig.asked(server) if "pods" in request]) == 3
        assert evicted(server) == []


async def test_a_pod_that_comes_while_gpus_are_unseen(server: ApiServer, tmp_path: Path) -> None:
    """A round in which the driver does not answer, or only another GPU was read back, ends with
    what was seen before: nothing in it is about the pod that has the name of an evicted one by now.
    """
    async with rig.agent(server, tmp_path) as it:
        look = datetime.now(UTC)
        it.around.after_round(*rig.judged([held("a")], EVICT), looked_at=look)
        await until(lambda: evicted(server) == ["a"])
        server.pods.gone("a", "team")
        server.add_pod("a", namespace="team", node=rig.NODE, lingers=True)
        await until(lambda: GONE in it.woken)
        for _ in range(20):
            it.around.after_round(*rig.judged([held("a")], EVICT), looked_at=look)
            await asyncio.sleep(0.1)
        assert evicted(server) == ["a"]
        settle(it, held("a"))
        await until(lambda: evicted(server) == ["a", "a"])


async def test_a_pod_that_comes_before_its_eviction(server: ApiServer, tmp_path: Path) -> None:
    server.faults.next(1, Slow(0.5), path="*/pods/a/eviction")
    async with rig.agent(server, tmp_path) as it:
        settle(it, held("a"))
        await until(lambda: any("eviction" in request for request in rig.asked(server)))
        server.pods.gone("a", "team")
        server.add_pod("a", namespace="team", node=rig.NODE)
        await until(lambda: GONE in it.woken)
        assert evicted(server) == []


async def test_a_long_goodbye_costs_few_requests(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path) as it:
        settle(it, held("a"))
        await until(lambda: evicted(server) == ["a"])
        await asyncio.sleep(0.5)
        lists = rig.asked(server).count("GET /api/v1/pods")
        assert lists < 40, "a hundredth of a second at first, a tenth of the time later on"
        server.pods.gone("a", "team")
        await until(lambda: GONE in it.woken)
