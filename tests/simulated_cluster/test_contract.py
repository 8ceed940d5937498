import json
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.node_view import UNHEALTHY, Wanted, read_node
from nodeagent.cluster.client.requests import JsonObject, Request
from nodeagent.cluster.drain.pods import read_pod
from nodeagent.cluster.reflector import read_event
from nodeagent.health.reporting import Condition
from tests.cluster.client.rig import PLAN, STATUS, Follower
from tests.machine_load import until
from tests.simulated_cluster.conftest import Cluster
from tests.simulated_cluster.exchanges import Conversation, differences
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.listing import listed
from tests.simulated_cluster.patching import MERGE
from tests.simulated_cluster.real_api_server import TOKEN

RECORDED = Path(__file__).parents[1] / "recorded" / "api_server.json"
NODE = "contract-node"
NODES = "/api/v1/nodes"


async def ask(
    access: ClusterAccess,
    method: Literal["GET", "POST", "PATCH", "DELETE"],
    path: str,
    body: JsonObject | None = None,
) -> JsonObject:
    kind = MERGE if method == "PATCH" else "application/json"
    request = Request("a change by another", method, path, body=body, content_type=kind)
    return await access.ask(request, read_object)


async def set_plan(access: ClusterAccess, text: str) -> None:
    patch = {"metadata": {"annotations": {PLAN: text}}}
    await ask(access, "PATCH", f"{NODES}/{NODE}", patch)


@pytest.fixture
async def node(access: ClusterAccess) -> AsyncIterator[JsonObject]:
    """A Node that another program uses, too; it goes again."""
    taint = {"key": "team", "effect": "NoSchedule"}
    made = {"metadata": {"name": NODE, "labels": {"zone": "z"}}, "spec": {"taints": [taint]}}
    yield await ask(access, "POST", NODES, made)
    await ask(access, "DELETE", f"{NODES}/{NODE}")


async def test_a_node_is_followed(access: ClusterAccess, node: JsonObject) -> None:
    seen = Follower(access, NODE)
    async with seen.running():
        await ask(access, "POST", NODES, {"metadata": {"name": "another"}})
        await ask(access, "DELETE", f"{NODES}/another")
        await set_plan(access, "one")
        await until(lambda: seen.plan == "one")
        await ask(access, "DELETE", f"{NODES}/{NODE}")
        await until(lambda: seen.views[-1] is None)
        await ask(access, "POST", NODES, {"metadata": {"name": NODE, "annotations": {PLAN: "two"}}})
        await until(lambda: seen.plan == "two")
    first, changed, gone, new = seen.views
    assert first
    assert changed
    assert gone is None
    assert new
    assert node["metadata"]["uid"] == first.uid == changed.uid != new.uid
    assert seen.faults == []


@pytest.mark.usefixtures("node")
async def test_nodes_of_a_label(access: ClusterAccess) -> None:
    for value, names in (("z", [NODE]), ("y", [])):
        found = await ask(access, "GET", f"{NODES}?labelSelector=zone%3D{value}")
        assert [one["metadata"]["name"] for one in found["items"]] == names


@pytest.mark.usefixtures("node")
async def test_versions_from_before_a_restart(cluster: Cluster, access: ClusterAccess) -> None:
    seen = Follower(access, NODE)
    async with seen.running():
        await set_plan(access, "one")
        old = (await access.listed(requests.list_node(NODE), read_node)).version
        await set_plan(access, "two")
        await until(lambda: seen.plan == "two")
        await cluster.restart()
        watch = requests.watch(requests.list_node(NODE), version=old, seconds=1)
        async with access.watch(watch) as stream:
            line = await access.next_line(watch, stream, silence=30.0)
        with pytest.raises(faults.VersionExpired):
            read_event(line, watch.purpose)
        await set_plan(access, "three")
        await until(lambda: seen.plan == "three")


async def test_a_node_is_written(access: ClusterAccess, node: JsonObject) -> None:
    text = "\x00\x07é\n" * 20_000
    ready = Condition("True", "Healthy", "m")
    made = Follower(access, NODE)
    async with made.running() as writer:
        writer.want(
            Wanted(
                {STATUS: text, "nodeagent.io/none": None},
                {"nodeagent.io/free": "1"},
                {"GPUHealthy": ready},
                {UNHEALTHY: True},
            )
        )
        await until(lambda: writer.view and writer.view.conditions and len(writer.view.taints) == 2)
        await writer.settled()
        assert writer.view
        assert writer.view.annotations == {STATUS: text}
        assert writer.view.labels == {"nodeagent.io/free": "1"}
        assert writer.view.conditions == {"GPUHealthy": ready}
        writer.want(Wanted({STATUS: None}, {"nodeagent.io/free": None}, taints={UNHEALTHY: False}))
        await until(lambda: writer.view and len(writer.view.taints) == 1)
        await writer.settled()
        assert made.writing == []
    found = await ask(access, "GET", f"{NODES}/{NODE}")
    assert not found["metadata"].get("annotations")
    assert found["metadata"]["labels"]["zone"] == "z"
    assert found["spec"]["taints"] == node["spec"]["taints"]


@pytest.mark.usefixtures("node")
async def test_annotations_have_a_limit_together(access: ClusterAccess) -> None:
    with pytest.raises(faults.RequestRefused, match="annotations"):
        await set_plan(access, "x" * (256 * 1024))


async def test_a_pod_has_the_workload_of_its_owner(access: ClusterAccess) -> None:
    pods = "/api/v1/namespaces/default/pods"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f9c7b6d", "uid": "1"}
    for name, owners in (("odd", [{**owner, "controller": True}]), ("worker-1", [owner])):
        labels = {"pod-template-hash": "5d8f9c7b6d"}
        metadata = {"name": name, "labels": labels, "ownerReferences": owners}
        spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}
        await ask(access, "POST", pods, {"metadata": metadata, "spec": spec})
    found = (await access.listed(requests.list_pods(NODE), read_pod)).items
    assert {pod.name: pod.workload for pod in found} == {"odd": "web", "worker-1": "worker-1"}
    for name in ("odd", "worker-1"):
        await ask(access, "DELETE", f"{pods}/{name}?gracePeriodSeconds=0")


async def test_every_answer(cluster: Cluster) -> None:
    """What a real server once said to the agent it says still; ours says no less, nothing else."""
    is_recorded = cluster.is_real and "NODEAGENT_TEST_RECORD" in os.environ
    with_long = is_recorded or not cluster.is_real
    async with aiohttp.ClientSession() as session:
        found = await Conversation(session, cluster.url, TOKEN, with_long=with_long).all()
    if is_recorded:
        lines = (f'"{what}": {json.dumps(said, sort_keys=True)}' for what, said in found.items())
        RECORDED.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    known = json.loads(RECORDED.read_text(encoding="utf-8"))
    if not with_long:
        known = {what: said for what, said in known.items() if what in found}
    assert list(differences(known, found)) == []


async def test_the_kubelets_list_is_that_of_a_real_one(tmp_path: Path) -> None:
    async with Kubelet(tmp_path) as kubelet:
        kubelet.run("plain")
        where: dict[str, Any] = {"driver": "gpu.nodeagent.io", "pool": f"n/gpu-{uuid.uuid4()}"}
        kubelet.claim("by-claim", "mig-1g-10gb-6", name="claim", **where)
        kubelet.claim(
            "by-limit", "mig-1g-10gb-5", name="by-limit-extended-resources-ab1c2", **where
        )
        found, recorded = await listed(kubelet.socket)
    assert found == recorded
