"""Claims that were written for NVIDIA's DRA driver, with the component dra-nvidia-names, and with
dra-nvidia-driver beside it.

The cases are what the specs of that driver's own suite and demos ask for; docs/migrate.md says
what of them runs unchanged.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manifests.rendering import MANIFESTS, with_components
from tests.real_cluster.conftest import serving
from tests.real_cluster.rig import CLAIMS, LABELS, PODS, RESOURCE, SELECTED, Cluster, Node
from tests.simulated_cluster.agent import PLAN

NVIDIA = "gpu.nvidia.com"
CLASSES = str(MANIFESTS / "components/dra-nvidia-names/classes.yaml")
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
EVENTS = "/api/v1/namespaces/default/events"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
Json = dict[str, Any]


@pytest.fixture
def names(cluster: Cluster) -> Iterator[None]:
    """NVIDIA's classes are there, and what a test has made of templates and jobs goes."""
    cluster.kubectl("apply", "-f", CLASSES)
    yield
    for path in (f"{JOBS}?labelSelector={SELECTED}", TEMPLATES):
        cluster.ask("DELETE", path, {"propagationPolicy": "Background"})
    cluster.kubectl("delete", "-f", CLASSES, "--ignore-not-found")
    recreate(cluster, "gpu.nodeagent.io")


@pytest.fixture
def driver(cluster: Cluster, names: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The component for the driver's name; the setting."""
    del names
    with_components(tmp_path, "dra", ["dra-nvidia-names", "dra-nvidia-driver"])
    cluster.kubectl("apply", "-k", str(tmp_path))
    yield {"NODEAGENT_DRA_DRIVER": NVIDIA}
    cluster.kubectl("apply", "-k", str(MANIFESTS / "overlays/dra"))


@pytest.fixture
def named(cluster: Cluster, folder: Path, names: None) -> Iterator[Node]:
    """Eight H100, where NVIDIA's configurations count."""
    del names
    with serving(cluster, folder, NODEAGENT_DRA_NVIDIA_CONFIGS="true") as node:
        yield node


@pytest.fixture(params=["names", "driver"])
def node(request: pytest.FixtureRequest, cluster: Cluster, folder: Path) -> Iterator[Node]:
    """The same, and one whose driver has NVIDIA's name."""
    if request.param == "names":
        yield request.getfixturevalue("named")
    else:
        with serving(cluster, folder, **request.getfixturevalue("driver")) as node:
            yield node


def recreate(cluster: Cluster, device_class: str) -> None:
    """As the page says, so that the scheduler knows its resource name again."""
    said = cluster.kubectl("get", "deviceclass", device_class, "-o", "yaml")
    cluster.kubectl("replace", "--force", "-f", "-", said=said.encode())


# --- what is asked for --------------------------------------------------------------------------


def request(name: str = "gpu", kind: str = "gpu", *selectors: str, **more: Any) -> Json:
    cel = [{"cel": {"expression": one}} for one in selectors]
    return {
        "name": name,
        "exactly": {"deviceClassName": f"{kind}.nvidia.com", "selectors": cel} | more,
    }


def config(kind: str, *requests: str, **sharing: Any) -> Json:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return {"requests": list(requests), "opaque": opaque}


def template(node: Node, name: str, *requests: Json, **devices: Any) -> Json:
    """A template of claims for these devices; how a pod names it."""
    spec = {"spec": {"devices": {"requests": list(requests), **devices}}}
    node.cluster.create(TEMPLATES, {"metadata": {"name": name}, "spec": spec})
    return {"name": name, "resourceClaimTemplateName": name}


def pods(node: Node, count: int, claims: list[Json], *containers: tuple[str, ...]) -> list[str]:
    """So many pods with these claims, each container with those of these names; `claim/request`
    is a part of one. They run.
    """
    uses = [
        {"claims": [dict(zip(("name", "request"), one.split("/"), strict=False)) for one in names]}
        for names in containers or (tuple(one["name"] for one in claims),)
    ]
    names = [f"{claims[0]['name']}-{number}" for number in range(count)]
    spec = node.pod_spec(uses, claims)
    for name in names:
        node.cluster.create(PODS, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})
    node.until_running(*names)
    return names


def devices(node: Node, pod: str, container: str = "main") -> str:
    """The device files that a container has: of GPUs, and of MIG devices."""
    return node.inside(
        pod, "cd /dev; ls -d nvidia[0-9]* nvidia-caps/* 2>/dev/null; true", container
    )


def gpus(node: Node, pod: str, container: str = "main") -> list[str]:
    """The GPUs of the container; it has no MIG device."""
    found = devices(node, pod, container).split()
    assert not [one for one in found if "caps" in one]
    return found


# --- whole GPUs ---------------------------------------------------------------------------------


def test_whole_gpus(node: Node) -> None:
    """One for each pod, for two containers or two pods together, two by two claims or by one."""
    one = template(node, "one", request())
    first, second = pods(node, 2, [one], ("one",), ("one",))
    assert gpus(node, first) == gpus(node, first, "c1") != gpus(node, second)
    assert len(gpus(node, first)) == len(gpus(node, second)) == 1
    other = {**one, "name": "other"}
    (pair,) = pods(node, 1, [other, one])
    assert len(gpus(node, pair)) == 2
    (double,) = pods(node, 1, [template(node, "double", request(count=2))])
    assert len(gpus(node, double)) == 2
    devices = {"requests": [request()]}
    node.cluster.create(CLAIMS, {"metadata": {"name": "both"}, "spec": {"devices": devices}})
    both = pods(node, 2, [{"name": "both", "resourceClaimName": "both"}])
    assert len({tuple(gpus(node, pod)) for pod in both}) == 1


KEY = "device.attributes['gpu.nvidia.com']"


def test_selectors(node: Node) -> None:
    """By product, driver and memory."""
    fitting = (
        f"{KEY}.productName.lowerAscii().matches('^.*h100.*$')",
        f"{KEY}.driverVersion.compareTo(semver('535.0.0')) >= 0",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0",
    )
    (pod,) = pods(node, 1, [template(node, "fits", request("gpu", "gpu", *fitting))])
    assert len(gpus(node, pod)) == 1


def test_a_job(node: Node) -> None:
    """Its pods come one after the other, and end."""
    claim = template(node, "task", request())
    spec = node.pod_spec([{"claims": [{"name": "task"}]}], [claim])
    spec["containers"][0]["command"] = ["sh", "-c", "ls /dev/nvidia[0-9]*"]
    body = {"template": {"spec": {**spec, "restartPolicy": "Never"}}, "completions": 2}
    node.cluster.create(JOBS, {"metadata": {"name": "task", "labels": LABELS}, "spec": body})
    path = f"{JOBS}/task"
    node.until(lambda: node.cluster.get(path)["status"].get("succeeded") == 2)
    assert "failed" not in node.cluster.get(path)["status"]


def test_sharing(node: Node) -> None:
    """Time slices and MPS, on two GPUs of one claim; each container has its own."""
    long = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    mps = {"strategy": "MPS", "mpsConfig": limits}
    configs = [config("GpuConfig", "ts", **long), config("GpuConfig", "mps", **mps)]
    claim = template(node, "shared", request("ts"), request("mps"), config=configs)
    (pod,) = pods(node, 1, [claim], ("shared/ts",), ("shared/ts",), ("shared/mps",))
    assert gpus(node, pod) == gpus(node, pod, "c1") != gpus(node, pod, "c2")
    environment = node.inside(pod, "env", "c2").split()
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in environment
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in environment
    assert "CUDA_MPS" not in node.inside(pod, "env")
    # The containers say no user, and the daemon serves one.
    node.until(lambda: "ClaimMismatch" in {one["reason"] for one in node.cluster.items(EVENTS)})


def test_a_node_that_does_not_honour_configurations(
    cluster: Cluster, folder: Path, names: None
) -> None:
    """The pod waits, and the claim's Event has the setting: a GPU without limit would be worse."""
    del names
    with serving(cluster, folder) as node:
        mps = config("GpuConfig", "gpu", strategy="MPS")
        claim = template(node, "limited", request(), config=[mps])
        spec = node.pod_spec([{"claims": [{"name": "limited"}]}], [claim])
        node.cluster.create(PODS, {"metadata": {"name": "limited", "labels": LABELS}, "spec": spec})
        said = "ClaimRefused", "set dra.nvidia_configs: true for the node's agent"
        node.until(
            lambda: any(
                event["reason"] == said[0] and said[1] in event["message"]
                for event in node.cluster.items(EVENTS)
            )
        )
        assert "limited" not in node.running()


# --- MIG devices --------------------------------------------------------------------------------

COUNTS = "device.capacity['gpu.nvidia.com']"


def test_mig_devices(node: Node) -> None:
    """Any, by figures, two of one claim, and with a configuration that changes nothing."""
    (pod,) = pods(node, 1, [template(node, "any", request("mig", "mig"))])
    assert "nvidia-caps/" in devices(node, pod)
    large = f"{COUNTS}.multiprocessors.isGreaterThan(quantity('50'))"
    small = f"{COUNTS}.multiprocessors.isLessThan(quantity('30'))"
    two = template(node, "two", request("a", "mig", small), request("b", "mig", large))
    (pod,) = pods(node, 1, [two], ("two/a",), ("two/b",))
    assert devices(node, pod) != devices(node, pod, "c1")
    figures = f"{COUNTS}.multiprocessors.isGreaterThan(quantity('10')) && "
    figures += f"{COUNTS}.memory.isGreaterThan(quantity('10Gi'))"
    sliced = config("MigDeviceConfig", "mig", strategy="TimeSlicing")
    claim = template(node, "sliced", request("mig", "mig", figures), config=[sliced])
    pods(node, 1, [claim])
    assert len(node.slices()) == 4


def test_four_mig_devices_of_one_gpu(cluster: Cluster, folder: Path, names: None) -> None:
    """On A100s that a plan has MIG enabled on: four pods with such a set each."""
    del names
    with serving(cluster, folder, "a100-40gb:8", NODEAGENT_RESET="whenIdle") as node:
        cluster.annotate(node.node, PLAN, "{version: v1, gpus: [{devices: all, mig: enabled}]}")
        wanted = {"a": "1g.5gb", "b": "1g.5gb", "c": "2g.10gb", "d": "3g.20gb"}
        requests = [request(n, "mig", f"{KEY}.profile == '{p}'") for n, p in wanted.items()]
        together = [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
        claim = template(node, "set", *requests, constraints=together)
        (first, *_) = pods(node, 4, [claim], *((f"set/{name}",) for name in wanted))
        assert (
            len({devices(node, first, container) for container in ("main", "c1", "c2", "c3")}) == 4
        )
        assert len(node.slices()) == 16
        assert len({gpu for gpu, _, _ in node.slices()}) == 4
        cluster.annotate(node.node, PLAN, None)


# --- limits -------------------------------------------------------------------------------------


def scheduled(node: Node, pod: str) -> str:
    """What the scheduler says of it; empty as long as it says nothing, or where it has a node."""
    conditions = node.pods()[pod]["status"].get("conditions", ())
    return next((str(c.get("message", "")) for c in conditions if c["type"] == "PodScheduled"), "")


def test_a_limit(node: Node) -> None:
    """It is of whichever class is newer. When that is deleted the scheduler forgets the resource
    name: a pod waits until the other class is created again.
    """
    node.pod("first", "gpu")
    node.until_running("first")
    assert len(gpus(node, "first")) == 1
    node.cluster.kubectl("delete", "deviceclass", NVIDIA)
    node.pod("waits", "gpu")
    node.until(lambda: "Insufficient nvidia.com/gpu" in scheduled(node, "waits"))
    recreate(node.cluster, "gpu.nodeagent.io")
    node.until_running("waits")


# --- what does not run unchanged ----------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        request("gpu", "gpu", f"{KEY}.productName == 'NONE'"),
        request("gpu", "gpu", f"{KEY}.index == 0"),
        request("gpu", "gpu", "device.driver == 'gpu.nvidia.com'"),
        request(capacity={"requests": {"memory": "2Gi"}}),
        request(capacity={"requests": {"shares": "1"}}),
    ],
    ids=["no such product", "index", "driver", "memory", "shares"],
)
def test_what_nothing_is_found_for(named: Node, wanted: Json) -> None:
    """Its pod waits, and the scheduler says so."""
    claim = template(named, "none", wanted)
    spec = named.pod_spec([{"claims": [{"name": "none"}]}], [claim])
    named.cluster.create(PODS, {"metadata": {"name": "none", "labels": LABELS}, "spec": spec})
    named.until(lambda: scheduled(named, "none"))
    assert "none" not in named.running()


# --- what runs under the driver's name alone ----------------------------------------------------


def test_shares_by_the_bare_name(cluster: Cluster, folder: Path, driver: dict[str, str]) -> None:
    """Several pods of one GPU, each held to its memory; the agent's own class and configuration
    choose the same, and the claims' status is written.
    """
    settings = {"NODEAGENT_DRA_SHARE": "memory", "NODEAGENT_DRA_MPS_USER": "root"}
    with serving(cluster, folder, "h100-80gb:1", **settings, **driver) as node:
        selected = "device.driver == 'gpu.nvidia.com'"
        wanted = request("gpu", "gpu", selected, capacity={"requests": {"memory": "4Gi"}})
        two = pods(node, 2, [template(node, "share", wanted)])
        amounts = {"requests": {"memory": "8Gi", "threads": "50"}}
        own = request(capacity=amounts, deviceClassName="mps.nodeagent.io")
        two += pods(node, 1, [template(node, "own", own)])
        for pod, limit in zip(two, ("4096M", "4096M", "8192M"), strict=True):
            environment = node.inside(pod, "env").split()
            assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}" in environment
        assert len(node.daemons()) == 1
        (ready,) = {status_of(node, claim) for claim in node.cluster.items(CLAIMS)}
        assert ready == (NVIDIA, "Prepared")
        assert {one["spec"]["driver"] for one in node.offer()} == {NVIDIA}


def status_of(node: Node, claim: Json) -> tuple[str, str]:
    """The driver and the state of the claim's one device, once its driver has written it."""
    path = f"{CLAIMS}/{claim['metadata']['name']}"
    (device,) = node.until(lambda: node.cluster.get(path)["status"].get("devices"))
    return device["driver"], device["conditions"][0]["reason"]


def test_a_class_of_ones_own(cluster: Cluster, folder: Path, driver: dict[str, str]) -> None:
    """It selects by the driver and has the resource's name: a limit is enough."""
    chosen = f"device.driver == '{NVIDIA}' && {KEY}.type == 'mig' && {KEY}.profile == '1g.12gb'"
    spec = {
        "selectors": [{"cel": {"expression": chosen}}],
        "extendedResourceName": "nvidia.com/mig-1g.12gb",
    }
    path = f"{RESOURCE}/deviceclasses"
    with serving(cluster, folder, "gh200:1", **driver) as node:
        cluster.create(path, {"metadata": {"name": "own.example.com"}, "spec": spec})
        try:
            node.pod("small", "mig-1g.12gb")
            node.until_running("small")
            assert "nvidia-caps/" in devices(node, "small")
            (claim,) = node.cluster.items(CLAIMS)
            (request,) = claim["spec"]["devices"]["requests"]
            assert request["exactly"]["deviceClassName"] == "own.example.com"
        finally:
            cluster.ask("DELETE", f"{path}/own.example.com")


def test_the_name_changes_when_nothing_is_held(
    cluster: Cluster, folder: Path, driver: dict[str, str]
) -> None:
    """A pod from before is ended under the former name; then its slices are gone."""
    with serving(cluster, folder, "h100-80gb:1") as node:
        claim = {"name": "own", "exactly": {"deviceClassName": "any.example.com"}}
        chosen = f"{KEY}.type == 'gpu'"
        classes = f"{RESOURCE}/deviceclasses"
        spec = {"selectors": [{"cel": {"expression": chosen}}]}
        cluster.create(classes, {"metadata": {"name": "any.example.com"}, "spec": spec})
        try:
            (pod,) = pods(node, 1, [template(node, "own", claim)])
            node.stop(signal.SIGTERM)
            node.settings |= driver
            node.serve()
            assert {one["spec"]["driver"] for one in node.offer()} == {"gpu.nodeagent.io"}
            node.delete(pod)
            node.until(lambda: not node.pods())
            node.stop(signal.SIGTERM)
            node.serve()
            node.until(lambda: {one["spec"]["driver"] for one in node.offer()} == {NVIDIA})
            assert gpus(node, *pods(node, 1, [{"name": "own", "resourceClaimTemplateName": "own"}]))
        finally:
            cluster.ask("DELETE", f"{classes}/any.example.com")
