import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.other_managers import (
    HAMI_REGISTER,
    MIG_MANAGER_LABEL,
    NOS_LABEL,
    OtherManager,
    other_allocator,
    other_managers,
    owned_by_others,
)
from nodeagent.cluster.drain.pods import Pod, PodSelector, read_pod
from nodeagent.plan.problems import Code
from nodeagent.reconcile.event_log import EventType
from tests.cluster.drain.rig import AFTER, MIXED, NODE, agent, asked
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer

LEAST = {"metadata": {"namespace": "a", "name": "b", "uid": "1"}}


def pod_of(pod: object) -> Pod:
    return read_pod(json.dumps(pod).encode())


def test_a_whole_pod() -> None:
    """Owners that control, labels that select by selector and by affinity, literal variables."""
    term = {"matchExpressions": [{"key": "by-affinity", "operator": "Exists"}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    by = {"kind": "DaemonSet", "name": "y", "controller": True}
    owners = [{"kind": "Node", "controller": False}, by]
    source = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    gates = {"name": "FEATURE_GATES", "value": "A=false, dynamicMIG=True"}
    env = [gates, {"name": "NODE", "valueFrom": source}]
    metadata = {
        **LEAST["metadata"],
        "labels": {"app": "x"},
        "annotations": {"kubernetes.io/config.mirror": "1"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": owners,
    }
    spec = {
        "nodeSelector": {"by-selector": "true"},
        "affinity": {"nodeAffinity": affinity},
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c", "env": env}],
    }
    assert pod_of({"metadata": metadata, "spec": spec, "status": {"phase": "Failed"}}) == Pod(
        "a",
        "b",
        {"app": "x"},
        phase="Failed",
        terminating=True,
        controller="DaemonSet",
        workload="y",
        mirror=True,
        selects=frozenset({"by-selector", "by-affinity"}),
        dynamic_mig=True,
        uid="1",
    )


def test_feature_gates() -> None:
    """Only a literal FEATURE_GATES that switches DynamicMIG itself on counts, in any letters."""
    cases = [
        ("FEATURE_GATES", "MPSSupport=false,DynamicMIG=true,", True),
        ("FEATURE_GATES", "DynamicMIG=false", False),
        ("FEATURE_GATES", "DynamicMIG=true.", False),
        ("GATES", "DynamicMIG=true", False),
    ]
    for name, value, on in cases:
        spec = {"containers": [{"env": [{"name": name, "value": value}]}]}
        assert pod_of({**LEAST, "spec": spec}).dynamic_mig is on


def test_the_least_there_can_be() -> None:
    pod = {**LEAST, "spec": {"containers": None}, "status": {}}
    assert pod_of(pod) == Pod("a", "b", phase="", uid="1", workload="b")


@pytest.mark.parametrize(
    ("pod", "kind", "name", "workload"),
    [
        ("web-5d8f9c7b6d-x2k4z", "ReplicaSet", "web-5d8f9c7b6d", "web"),
        ("web-x2k4z", "ReplicaSet", "web", "web"),  # of no Deployment
        ("nightly-29932560-x2k4z", "Job", "nightly-29932560", "nightly"),
        ("train-20261129-x2k4z", "Job", "train-20261129", "train-20261129"),
        ("db-0", "StatefulSet", "db", "db"),
        ("llama-3-head-7", "RayCluster", "llama-3", "llama-3"),
        ("cache-node-1", "Node", "node-1", "cache"),
        ("worker-1", "", "", "worker-1"),
    ],
)
def test_the_workload_of_a_pod(pod: str, kind: str, name: str, workload: str) -> None:
    labels = {"pod-template-hash": "5d8f9c7b6d"}
    owners = [{"kind": kind, "name": name, "controller": True}] if kind else []
    metadata = {"namespace": "a", "name": pod, "uid": "1", "labels": labels}
    assert pod_of({"metadata": {**metadata, "ownerReferences": owners}}).workload == workload


def test_what_is_no_pod() -> None:
    cases: list[Any] = [
        None,
        [],
        {},
        {"metadata": {"namespace": "a", "name": 1, "uid": "1"}},
        {**LEAST, "spec": {"nodeSelector": ["x"]}},
        {**LEAST, "spec": {"containers": {}}},
    ]
    for pod in cases:
        with pytest.raises(ValueError, match=r"Expected|missing"):
            pod_of(pod)


# --- selectors ------------------------------------------------------------------------------------

CLIENT = "nvidia.com/gpu.deploy.client"


def test_what_matches() -> None:
    """All labels have to match; an empty selector matches no pod, never every pod."""
    cases: list[tuple[PodSelector, Pod, bool]] = [
        (PodSelector({"app": "x"}), Pod("a", "p", {"app": "x", "more": "y"}), True),
        (PodSelector({"app": "x"}), Pod("a", "p", {"app": "y"}), False),
        (PodSelector({"app": "x", "b": "c"}), Pod("a", "p", {"app": "x"}), False),
        (PodSelector(), Pod("a", "p", {"app": "x"}), False),
        (
            PodSelector(selects=CLIENT),
            Pod("a", "p", controller="DaemonSet", selects=frozenset({CLIENT})),
            True,
        ),
        (PodSelector(selects=CLIENT), Pod("a", "p", selects=frozenset({CLIENT})), False),
        (PodSelector(selects=CLIENT), Pod("a", "p", controller="DaemonSet"), False),
    ]
    for selector, pod, matches in cases:
        assert selector.matches(pod) is matches


def test_a_selector_as_it_is_written() -> None:
    assert PodSelector.of("app=x") == PodSelector({"app": "x"})
    assert PodSelector.of("app=x, b/c=") == PodSelector({"app": "x", "b/c": ""})
    for wrong in ("", "app", "=x", "app=x,"):
        with pytest.raises(ValueError, match="labels"):
            PodSelector.of(wrong)


# --- other managers -----------------------------------------------------------------------------

Known = tuple[NodeView, tuple[Pod, ...] | None]


def pod(phase: str = "Running", dynamic_mig: bool = False, selects: str = "", **labels: str) -> Pod:
    """A pod with these labels, dots and slashes written as double and triple underscores."""
    spelled = {k.replace("___", "/").replace("__", "."): v for k, v in labels.items()}
    return Pod(
        "ns",
        "one-x7",
        {key.replace("_", "-"): value for key, value in spelled.items()},
        phase=phase,
        selects=frozenset({selects} - {""}),
        dynamic_mig=dynamic_mig,
    )


MIG_MANAGER = pod(app="nvidia-mig-manager")
MIG_AGENT = pod(app__kubernetes__io___name="mig-agent", selects=NOS_LABEL)
DRA: dict[str, Any] = {"nvidia_dra_driver_gpu_component": "kubelet-plugin"}
NEW_DRA: dict[str, Any] = {"dra_driver_nvidia_gpu_component": "kubelet-plugin"}
HAMI = pod(app__kubernetes__io___component="hami-device-plugin")
HAMI_MIG = json.dumps([{"id": "GPU-0", "mode": "hami-core"}, {"id": "GPU-1", "mode": "mig"}])


def here(*pods: Pod, **node: Mapping[str, str]) -> Known:
    return NodeView(**node), pods  # type: ignore[arg-type]  # labels, annotations, allocatable


def unlisted(**node: Mapping[str, str]) -> Known:
    return NodeView(**node), None  # type: ignore[arg-type]


def test_each_is_recognised_and_named() -> None:
    cases: list[tuple[Known, OtherManager]] = [
        (here(MIG_MANAGER), OtherManager.MIG_MANAGER),
        (unlisted(labels={MIG_MANAGER_LABEL: "true"}), OtherManager.MIG_MANAGER),
        (here(MIG_AGENT), OtherManager.NOS),
        (unlisted(labels={NOS_LABEL: "mig"}), OtherManager.NOS),
        (here(pod(dynamic_mig=True, **DRA)), OtherManager.DRA),
        (here(pod(dynamic_mig=True, **NEW_DRA)), OtherManager.DRA),
        (here(HAMI, annotations={HAMI_REGISTER: HAMI_MIG}), OtherManager.HAMI),
        (unlisted(annotations={HAMI_REGISTER: HAMI_MIG}), OtherManager.HAMI),
        (
            unlisted(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100,0,true,0,mig:"}),
            OtherManager.HAMI,
        ),
        (here(pod(name="instaslice-daemonset")), OtherManager.INSTASLICE),
        (here(pod(app="das-daemonset")), OtherManager.INSTASLICE),
        (unlisted(allocatable={"mig.das.com/1g.5gb": "7"}), OtherManager.INSTASLICE),
    ]
    for (node, pods), owner in cases:
        [(found, evidence)] = other_managers(node, pods).items()
        assert found is owner
        [problem] = owned_by_others(node, pods)
        assert evidence in problem.message
        assert problem.remedy
        assert owned_by_others(node, pods, tolerated={owner}) == ()


def test_what_only_looks_like_one() -> None:
    cases: list[Known] = [
        unlisted(),
        here(),
        unlisted(annotations={HAMI_REGISTER: "[" * 100_000}),
        here(labels={MIG_MANAGER_LABEL: "true", NOS_LABEL: "mig"}),
        unlisted(labels={MIG_MANAGER_LABEL: "false", NOS_LABEL: "mps"}),
        here(pod(phase="Succeeded", app="nvidia-mig-manager")),
        here(pod(app__kubernetes__io___name="mig-agent")),
        here(pod(app__kubernetes__io___name="gpu-agent", selects=NOS_LABEL)),
        here(pod(**DRA)),
        here(pod(dynamic_mig=True, app="another")),
        here(annotations={HAMI_REGISTER: HAMI_MIG}),
        here(HAMI, annotations={HAMI_REGISTER: '[{"mode": "hami-core"}]'}),
        here(HAMI, annotations={HAMI_REGISTER: "{}"}),
        unlisted(annotations={HAMI_REGISTER: "GPU-0,7,40960,100,A100-mig,0,true:"}),
        unlisted(allocatable={"mig.das.com/1g.5gb": "0", "nvidia.com/mig-1g.5gb": "7"}),
    ]
    for node, pods in cases:
        assert owned_by_others(node, pods) == ()


def test_the_label_of_our_own_protocol_is_no_evidence() -> None:
    node = NodeView(labels={NOS_LABEL: "mig"})
    assert other_managers(node, None, source="nos") == {}
    assert other_managers(node, (MIG_AGENT,), source="nos")


def test_several_are_all_named() -> None:
    node, pods = here(MIG_AGENT, MIG_MANAGER)
    assert other_managers(node, pods).keys() == {OtherManager.MIG_MANAGER, OtherManager.NOS}
    assert len(owned_by_others(node, pods, tolerated={OtherManager.NOS})) == 1


# --- in an agent ----------------------------------------------------------------------------------

MANAGER_POD: dict[str, Any] = {"labels": {"app": "nvidia-mig-manager"}}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A server with the Node and a pod on it that matters to no rule."""
    async with ApiServer() as api:
        api.add_node(NODE, labels=MIXED)
        api.add_pod("somebody", node=NODE)
        yield api


async def test_work_goes_on_when_the_other_has_gone(server: ApiServer, tmp_path: Path) -> None:
    server.add_pod("away", node="m", **MANAGER_POD)
    server.add_pod("here", node=NODE, **MANAGER_POD)
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
        assert [p.code for p in await it.round()] == [Code.OWNED]
        server.delete_pod("here")
        assert await it.round() == ()


async def test_a_label_that_goes_is_reason_to_look(server: ApiServer, tmp_path: Path) -> None:
    """Where pods cannot be listed, mig-manager's label counts; without it the loop is woken."""
    label = "nvidia.com/gpu.deploy.mig-manager"
    server.patch_node(NODE, {"metadata": {"labels": {label: "true"}}})
    server.faults.next(1, Answer(403), path="/api/v1/pods")
    async with agent(server, tmp_path) as it:
        [problem] = await it.round()
        assert problem.code is Code.OWNED
        assert label in problem.message
        assert EventType.UNCHECKED in [kind for kind, _ in it.reported]
        server.patch_node(NODE, {"metadata": {"labels": {label: None}}})
        await until(lambda: it.woken)


async def test_on_a_node_as_planned_it_is_reported_once(server: ApiServer, tmp_path: Path) -> None:
    server.add_pod("here", node=NODE, **MANAGER_POD)
    async with agent(server, tmp_path) as it:
        for _ in range(3):
            assert await it.round(AFTER, AFTER) == ()
        assert [kind for kind, _ in it.reported] == [EventType.OTHER_OWNER]
        assert "mig-manager" in it.reported[0][1]
        assert it.around.problems == ()
        assert asked(server).count("GET /api/v1/pods") == 1


@pytest.mark.parametrize(
    ("drivers", "allocatable", "expected", "mends"),
    [
        ((), {"cpu": "8", "nvidia.com/gpu": "0"}, "", ""),
        (
            ("gpu.nodeagent.io",),
            {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "2"},
            "1g.5gb: 2",
            "`kubectl label node n --overwrite nvidia.com/gpu.deploy.device-plugin=false`",
        ),
        (("gpu.nvidia.com",), {}, "ResourceSlices of gpu.nvidia.com", "docs/migrate.md"),
    ],
)
def test_what_else_hands_out_gpus(
    drivers: tuple[str, ...], allocatable: dict[str, str], expected: str, mends: str
) -> None:
    found = other_allocator(drivers, allocatable, "n")
    assert bool(expected) == bool(found)
    if found:
        assert expected in found.message
        assert mends in found.remedy


@pytest.mark.parametrize(
    ("source", "mends"),
    [
        ("annotation", "`kubectl label node n nos.nebuly.com/gpu-partitioning-`"),
        ("nos", '{"nodeSelector":{"nos.nebuly.com/gpu-partitioning":"off"}}'),
    ],
)
def test_a_node_leaves_nos_only_where_nos_plans_nothing_for_it(source: str, mends: str) -> None:
    view = NodeView(name="n", labels={NOS_LABEL: "mig"})
    agents_pod = Pod("nos", "a", {"app.kubernetes.io/name": "nos-mig-agent"})
    [problem] = owned_by_others(view, (agents_pod,), source=source)
    assert mends in problem.remedy


async def test_one_that_has_come_is_seen_before_a_change(server: ApiServer, tmp_path: Path) -> None:
    async with agent(server, tmp_path) as it:
        assert await it.round(AFTER, AFTER) == ()
        server.add_pod("late", node=NODE, **MANAGER_POD)
        assert [p.code for p in await it.round()] == [Code.OWNED]


async def test_a_silent_server_is_not_waited_for(server: ApiServer, tmp_path: Path) -> None:
    server.add_pod("here", node=NODE, **MANAGER_POD)
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
        server.faults.next(1, Answer(503), path="/api/v1/pods")
        server.delete_pod("here")
        assert [p.code for p in await it.round()] == [Code.OWNED]
        assert "by the last list" in it.reported[-1][1]


async def test_nos_own_label_is_served_and_no_evidence(server: ApiServer, tmp_path: Path) -> None:
    server.patch_node(NODE, {"metadata": {"labels": {NOS_LABEL: "mig"}}})
    server.annotate(NODE, **{"hami.io/node-nvidia-register": None})
    server.faults.next(9, Answer(403), path="/api/v1/pods")
    async with agent(server, tmp_path) as it:
        assert [p.code for p in await it.round()] == [Code.OWNED]
    async with agent(server, tmp_path, source="nos") as it:
        assert await it.round() == ()
