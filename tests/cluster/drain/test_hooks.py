import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.drain import allocatable
from nodeagent.errors import UsageError
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from tests.cluster.drain import rig
from tests.machine_load import until
from tests.plan.cards import wanted, with_instances
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Slow

pytestmark = pytest.mark.virtual_time
CORDONED = "nodeagent.io/cordoned"
CONFIG = "nvidia.com/device-plugin.config"
PAUSED = "paused-for-mig-change"
CHANGING = {"key": "nodeagent.io/gpu-changing", "effect": "NoSchedule"}
RESTART_DUE = "nodeagent.io/device-plugin-restart-due"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the Node, on which the GPU Operator has put its clients."""
    async with ApiServer() as api:
        deployed = {f"{rig.DEPLOY}device-plugin": "true", f"{rig.DEPLOY}dcgm": "false"}
        api.add_node(rig.NODE, labels={**rig.MIXED, **deployed})
        api.add_pod("plugin", namespace="gpu", node=rig.NODE, labels=rig.PLUGIN, lingers=True)
        rig.offer(api, **{"mig-7g.80gb": "1"})
        yield api


def unschedulable(server: ApiServer) -> bool:
    return bool(server.node(rig.NODE)["spec"].get("unschedulable", False))


async def test_labels_are_paused_and_put_back(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(
        server,
        tmp_path,
        clients="pauseLabels",
        cordon=True,
        pods_deadline=5,
        allocatable_deadline=5,
    ) as it:
        evaluation, observed = rig.judged([rig.BEFORE])
        assert await it.around.objections(evaluation, rig.todo_of(evaluation), observed) == ()
        preparing = asyncio.create_task(it.around.prepare(rig.todo_of(evaluation)))
        await until(lambda: rig.labels(server)["device-plugin"] == PAUSED)
        assert rig.labels(server)["dcgm"] == "false"
        assert unschedulable(server)
        server.delete_pod("plugin", namespace="gpu")
        await asyncio.sleep(0.05)
        assert not preparing.done(), "it is leaving, and has not gone"
        server.pods.gone("plugin", "gpu")
        assert await preparing == ()
        assert rig.labels(server)["device-plugin"] == PAUSED
        it.around.after_round(*rig.judged([rig.AFTER]))
        await until(lambda: rig.labels(server)["device-plugin"] == "true")
        await asyncio.sleep(0.05)
        assert unschedulable(server), "until pods can have the new devices"
        rig.offer(server, **{"mig-3g.40gb": "2"})
        await until(lambda: not unschedulable(server))
        assert CORDONED not in rig.marks(server)
        assert it.around.problems == ()


async def test_pods_that_do_not_go_put_the_change_off(server: ApiServer, tmp_path: Path) -> None:
    slow = replace(rig.PACE, prepare=(2.0, 4.0))
    async with rig.agent(server, tmp_path, clients="pauseLabels", intervals=slow) as it:
        [problem] = await it.round()
        assert problem.code is Code.IN_USE
        assert problem.message == (
            "the pods gpu/plugin (app=nvidia-device-plugin-daemonset) have not gone within "
            "0.15 s, so the GPUs were not changed"
        )
        await until(lambda: rig.labels(server)["device-plugin"] == "true")
        before = len(rig.asked(server))
        assert [p.code for p in await it.round()] == [Code.IN_USE]
        assert [a for a in rig.asked(server)[before:] if a.startswith("PATCH")] == [], (
            "not yet again"
        )
        await until(lambda: "the preparation is retried" in it.woken)
        server.pods.gone("plugin", "gpu")
        assert await it.round() == ()


async def test_another_configuration_is_not_put_off(server: ApiServer, tmp_path: Path) -> None:
    """It may be of the same text, whose digest then is the same; it is tried at once."""
    slow = replace(rig.PACE, prepare=(60.0, 600.0))
    async with rig.agent(server, tmp_path, clients="pauseLabels", intervals=slow) as it:
        assert await it.round()
        await until(lambda: rig.labels(server)["device-plugin"] == "true")
        before = len(rig.asked(server))
        assert await it.round()
        assert [a for a in rig.asked(server)[before:] if a.startswith("PATCH")] == []
        evaluation, observed = rig.judged([rig.BEFORE], wanted(rig.EMPTY, [("2g.20gb", 2)]))
        todo = rig.todo_of(evaluation)
        assert await it.around.objections(evaluation, todo, observed) == ()
        before = len(rig.asked(server))
        assert await it.around.prepare(todo)
        assert [a for a in rig.asked(server)[before:] if a.startswith("PATCH")]


async def test_a_taint_keeps_pods_away_meanwhile(server: ApiServer, tmp_path: Path) -> None:
    def taints() -> list[dict[str, str]]:
        found: list[dict[str, str]] = server.node(rig.NODE)["spec"].get("taints", [])
        return found

    theirs = {"key": "team", "effect": "NoExecute", "value": "a"}
    later = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    server.patch_node(rig.NODE, {"spec": {"taints": [theirs]}})
    async with rig.agent(server, tmp_path, taints=True, allocatable_deadline=5) as it:
        assert await it.prepare() == ()
        assert taints() == [theirs, CHANGING]
        assert not unschedulable(server)
        server.patch_node(rig.NODE, {"spec": {"taints": [theirs, CHANGING, later]}})
        it.around.after_round(*rig.judged([rig.AFTER]))
        await asyncio.sleep(0.05)
        assert CHANGING in taints(), "until pods can have the new devices"
        rig.offer(server, **{"mig-3g.40gb": "2"})
        await until(lambda: taints() == [theirs, later])
        assert await it.prepare() == ()
        assert CHANGING in taints()
    async with rig.agent(server, tmp_path) as it:
        assert await it.round(rig.AFTER, rig.AFTER) == ()
        await until(lambda: taints() == [theirs, later])


@pytest.mark.parametrize("clients", ["pauseLabels", "deletePods"])
async def test_a_crash_in_the_middle_is_put_right_by_the_next_agent(
    server: ApiServer, tmp_path: Path, clients: str
) -> None:
    server.pods.gone("plugin", "gpu")
    async with rig.agent(server, tmp_path, clients=clients, cordon=True) as it:
        assert await it.prepare() == ()
    assert unschedulable(server)
    server.add_pod("plugin-2", namespace="gpu", node=rig.NODE, labels=rig.PLUGIN)
    async with rig.agent(server, tmp_path, clients="nothing") as it:
        assert await it.round(rig.AFTER, rig.AFTER) == ()
        await until(lambda: not unschedulable(server))
        assert rig.labels(server)["device-plugin"] == "true"
        assert not {CORDONED, RESTART_DUE} & set(rig.marks(server))
        there = {pod["metadata"]["name"] for pod in server.store.all("pods")}
        assert ("plugin-2" in there) == (clients == "pauseLabels")


async def test_a_stop_in_the_middle_puts_back_at_once(server: ApiServer, tmp_path: Path) -> None:
    server.pods.gone("plugin", "gpu")
    async with rig.agent(server, tmp_path, clients="pauseLabels", cordon=True) as it:
        await it.round()
        it.around.after_round(*rig.judged([rig.AFTER], config="shared"))
        assert await it.prepare() == ()
        await it.around.shut_down(within=5)
        assert not unschedulable(server)
        assert rig.labels(server)["device-plugin"] == "true"


async def test_a_stop_awaits_no_offer(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path, cordon=True, allocatable_deadline=5) as it:
        assert await it.round() == ()
        await asyncio.sleep(0.05)
        assert unschedulable(server), "until pods can have the new devices"
        await it.around.shut_down(within=5)
        assert not unschedulable(server)


async def test_the_plugins_pod_is_deleted_once(server: ApiServer, tmp_path: Path) -> None:
    server.pods.gone("plugin", "gpu")
    server.add_pod("plugin", namespace="gpu", node=rig.NODE, labels=rig.PLUGIN)
    server.add_pod("elsewhere", namespace="gpu", node="m", labels=rig.PLUGIN)
    async with rig.agent(server, tmp_path, clients="deletePods") as it:
        assert await it.round() == ()
        await until(lambda: RESTART_DUE not in rig.marks(server))
        deletions = [request for request in rig.asked(server) if request.startswith("DELETE")]
        assert deletions == ["DELETE /api/v1/namespaces/gpu/pods/plugin"]
        server.add_pod("plugin", namespace="gpu", node=rig.NODE, labels=rig.PLUGIN)
        it.around.after_round(*rig.judged([rig.AFTER]))
        rig.offer(server, **{"mig-3g.40gb": "2"})
        await until(lambda: "the node offers what it should, as far as that is known" in it.woken)
        assert [r for r in rig.asked(server) if r.startswith("DELETE")] == deletions


async def test_what_the_node_does_not_offer_is_reported(server: ApiServer, tmp_path: Path) -> None:
    here = f"--field-selector spec.nodeName={rig.NODE}"
    async with rig.agent(server, tmp_path, plugin_pods=("app=plugin", "name=ds,tier=a")) as it:
        assert await it.round() == ()
        assert it.codes() == []
        before = len(rig.asked(server))
        await until(lambda: it.codes() == ["NotOffered", "NotOffered"])
        assert rig.THREE in it.around.problems[0].message
        for problem in it.around.problems:
            assert f"pods -A -l app=plugin {here}; kubectl " in problem.remedy
            assert f"pods -A -l name=ds,tier=a {here}`" in problem.remedy
            assert problem.remedy.startswith("restart the device plugin: `kubectl delete pods ")
        assert [kind for kind, _ in it.reported] == [EventType.NOT_OFFERED] * 2
        assert all("`kubectl delete pods" in words for _, words in it.reported)
        rig.offer(server, **{"mig-3g.40gb": "2"})
        await until(lambda: not it.around.problems)
        assert rig.asked(server)[before:] == []


@pytest.mark.parametrize(
    ("clients", "strategy", "mends"),
    [
        ("deletePods", "mixed", "`kubectl get pods -A -l "),
        ("nothing", "none", '{"mig":{"strategy":"mixed"}}'),
        ("nothing", "single", '{"mig":{"strategy":"mixed"}}'),
    ],
)
async def test_a_restart_is_no_remedy_where_it_was_done_or_cannot_help(
    clients: str, strategy: str, mends: str, server: ApiServer, tmp_path: Path
) -> None:
    """`single` takes devices that are all alike, `none` takes none."""
    server.patch_node(rig.NODE, {"metadata": {"labels": {allocatable.STRATEGY_LABEL: strategy}}})
    async with rig.agent(server, tmp_path, clients=clients) as it:
        unlike = with_instances(rig.EMPTY, [("3g.40gb", 0), ("2g.20gb", 4)])
        assert await it.round(after=unlike) == ()
        await until(lambda: "NotOffered" in it.codes())
        assert all(mends in problem.remedy for problem in it.around.problems)


async def test_steady_state_asks_for_nothing(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path, clients="pauseLabels", cordon=True) as it:
        await it.round(rig.AFTER, rig.AFTER)
        before = len(server.requests)
        for number in range(20):
            await it.round(rig.AFTER, rig.AFTER)
            server.heartbeat(rig.NODE, f"2026-01-01T00:00:{number:02d}Z")
            server.annotate(rig.NODE, **{"nodeagent.io/status": str(number)})
            await asyncio.sleep(0.005)
        assert len(server.requests) == before


async def test_a_change_without_clients_to_notify_asks_for_the_pods_alone(
    server: ApiServer, tmp_path: Path
) -> None:
    async with rig.agent(server, tmp_path) as it:
        before = len(rig.asked(server))
        assert await it.round() == ()
        rig.offer(server, **{"mig-3g.40gb": "2"})
        await until(lambda: "the node offers what it should, as far as that is known" in it.woken)
        assert rig.asked(server)[before:] == ["GET /api/v1/pods"]


async def test_the_plugins_configuration_comes_last(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path) as it:
        evaluation, observed = rig.judged([rig.BEFORE], config="shared")
        it.around.after_round(evaluation, observed)
        await asyncio.sleep(0.05)
        assert CONFIG not in rig.labels(server, CONFIG)
        await it.round(rig.AFTER, rig.AFTER, config="shared")
        await until(lambda: rig.labels(server, CONFIG).get(CONFIG) == "shared")
        server.patch_node(rig.NODE, {"metadata": {"labels": {CONFIG: "other"}}})
        await asyncio.sleep(0.05)
        assert rig.labels(server, CONFIG)[CONFIG] == "other", (
            "no race with the program that sets it"
        )
        await it.round(rig.AFTER, rig.AFTER, config="shared")
        await until(lambda: rig.labels(server, CONFIG)[CONFIG] == "shared")


async def test_a_configuration_asked_for_meanwhile(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path) as it:
        server.faults.next(1, Slow(0.2), path=f"*/nodes/{rig.NODE}")
        it.around.after_round(*rig.judged([rig.AFTER], config="one"))
        await until(lambda: f"PATCH /api/v1/nodes/{rig.NODE}" in rig.asked(server))
        it.around.after_round(*rig.judged([rig.AFTER], config="two"))
        await until(lambda: rig.labels(server, CONFIG).get(CONFIG) == "two", within=5.0)


async def test_others_writes_in_between_are_no_obstacle(server: ApiServer, tmp_path: Path) -> None:
    server.pods.gone("plugin", "gpu")
    server.faults.next(2, Answer(409), verb="PATCH")
    async with rig.agent(server, tmp_path, clients="pauseLabels") as it:
        assert await it.round() == ()
        await until(lambda: rig.labels(server)["device-plugin"] == "true")
    patches = [r for r in server.requests if r.method == "PATCH" and r.status == 200]
    assert [p.body["metadata"]["labels"] for p in patches] == [
        {f"{rig.DEPLOY}device-plugin": PAUSED},
        {f"{rig.DEPLOY}device-plugin": "true"},
    ]


async def test_without_an_api_server(server: ApiServer, tmp_path: Path) -> None:
    async with rig.agent(server, tmp_path, clients="pauseLabels") as it:
        await server.stop()
        [problem] = await it.round()
        assert problem.code is Code.CLUSTER
        assert "cannot be notified" in problem.message
        await until(lambda: it.codes() == ["Cluster"])
        await server.start()
        await until(lambda: it.codes() == [])
        assert rig.labels(server)["device-plugin"] == "true"
    async with rig.agent(server, tmp_path) as it:
        await server.stop()
        assert await it.round() == ()
        assert [kind for kind, _ in it.reported] == [EventType.UNCHECKED]
        await server.start()


async def test_the_end_of_an_outage_cuts_the_pause_short(server: ApiServer, tmp_path: Path) -> None:
    slow = replace(rig.PACE, prepare=(60.0, 600.0))
    async with rig.agent(server, tmp_path, clients="pauseLabels", intervals=slow) as it:
        await server.stop()
        [problem] = await it.round()
        await server.start()
        assert await it.round() == (problem,)
        it.around.server_answers()
        assert "the preparation is retried" in it.woken
        [tried] = await it.round()
        assert (problem.code, tried.code) == (Code.CLUSTER, Code.IN_USE)  # the plugin's pod stays


@pytest.mark.parametrize(
    "wrong", [{"tolerate": ("mig-manger",)}, {"plugin_pods": ("nvidia",)}], ids=str
)
async def test_settings_that_name_nothing_known(
    server: ApiServer, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"kubernetes.{next(iter(wrong))}"):
        async with rig.agent(server, tmp_path, **wrong):
            pass


async def test_labels_mig_manager_paused_stay_paused(server: ApiServer, tmp_path: Path) -> None:
    """Who else is at work must not have the clients sent back to him; alone they are put back."""
    server.patch_node(rig.NODE, {"metadata": {"labels": {f"{rig.DEPLOY}device-plugin": PAUSED}}})
    server.add_pod("manager", node=rig.NODE, labels={"app": "nvidia-mig-manager"})
    async with rig.agent(server, tmp_path, tolerate=("mig-manager",)) as it:
        await it.round(rig.AFTER, rig.AFTER)
        await asyncio.sleep(0.05)
        assert rig.labels(server)["device-plugin"] == PAUSED
    server.delete_pod("manager")
    async with rig.agent(server, tmp_path) as it:
        await it.round(rig.AFTER, rig.AFTER)
        await until(lambda: rig.labels(server)["device-plugin"] == "true")
