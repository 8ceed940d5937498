"""Helm's own library renders, checks and installs the chart: what overlays and components make."""

import functools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import __version__
from tests.manifests import rendering
from tests.manifests.test_rendering import rights_follow_policies
from tests.simulated_cluster import real_api_server
from tools.make_dist import write_chart

helm = pytest.importorskip("helm_python", reason="Helm's library is there for Linux of x86-64")
rendered = pytest.mark.skipif(bool(rendering.why_not()), reason=rendering.why_not())

CHART = rendering.MANIFESTS / "helm/nodeagent"
CLAIMS = {"dra": {"mode": "dynamic"}}
IN_POD = {"mps": {"launch": "child"}, "settings": {"mps": {"launch": "hostSystemd"}}}
WITH_RIGHT = {"clients": "deletePods", "settings": {"kubernetes": {"clients": "pauseLabels"}}}
BOTH_NAMES = {"dra": {"nvidiaNames": True, "nvidiaDriver": True}}
OF_COMPONENTS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("plain", ("source-file",), {"source": "file"}),
    ("plain", ("source-mig-config",), {"source": "mig-config"}),
    ("plain", ("driver-from-operator",), {"driver": "operator"}),
    ("plain", ("driver-from-host",), {"driver": "host"}),
    ("plain", ("evictions", "monitoring"), {"evictions": True, "monitoring": {"port": True}}),
    ("plain", ("mps-in-pod",), IN_POD),
    ("gpu-operator", ("plugin-pod-deletion",), WITH_RIGHT),
    ("dra", ("dra-nvidia-names",), {"dra": {"nvidiaNames": True}}),
    ("dra", ("dra-nvidia-driver",), {"dra": {"nvidiaDriver": True}}),
    ("dra", ("dra-nvidia-names", "dra-nvidia-driver"), BOTH_NAMES),
)


@functools.cache
def _chart() -> Any:
    return helm.Chart.load(CHART)


def _of(name: str) -> dict[str, Any]:
    (values,) = rendering.written(f"helm/nodeagent/values/{name}.yaml")
    return values


def _rendered(
    values: dict[str, Any], namespace: str = "default", chart: Any = None
) -> dict[str, str]:
    manifests: dict[str, str] = (chart or _chart()).render(
        values, name="nodeagent", namespace=namespace
    )
    return manifests


def _objects(values: dict[str, Any], namespace: str = "default") -> tuple[rendering.Document, ...]:
    """What the chart makes of the values; the items of a List by themselves."""
    text = _rendered(values, namespace)["nodeagent/templates/objects.yaml"]
    found = (document for document in yaml.safe_load_all(text) if document)
    return tuple(chain.from_iterable(d["items"] if d["kind"] == "List" else (d,) for d in found))


def _same(documents: Iterable[rendering.Document]) -> dict[tuple[str, ...], rendering.Document]:
    """Documents by name, without what is Helm's alone: whose they are, the settings' checksum, and
    the settings' text but for what it says.
    """
    found: dict[tuple[str, ...], rendering.Document] = {}
    for document in documents:
        text = re.sub(r'(managed-by": )"(kustomize|Helm)"', r'\1""', json.dumps(document))
        copy = json.loads(text)
        if copy["kind"] == "DaemonSet":
            annotations = copy["spec"]["template"]["metadata"].pop("annotations", {})
            assert set(annotations) <= {"checksum/settings"}
        if "settings.yaml" in copy.get("data", {}):
            copy["data"]["settings.yaml"] = yaml.safe_load(copy["data"]["settings.yaml"])
        metadata = copy["metadata"]
        key = (copy["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found
        found[key] = copy
    return found


@rendered
@pytest.mark.parametrize("name", rendering.OVERLAYS)
def test_the_chart_makes_the_objects_of_an_overlay(name: str) -> None:
    assert _same(_objects(_of(name))) == _same(rendering.overlay(name))


@rendered
@pytest.mark.parametrize(("name", "components", "values"), OF_COMPONENTS)
def test_the_chart_makes_the_objects_with_components(
    name: str, components: tuple[str, ...], values: dict[str, Any], tmp_path: Path
) -> None:
    """As an overlay of one's own with these components, the settings being the overlay's."""
    kustomized = rendering.with_components(tmp_path, name, components)
    assert _same(_objects(_merged(_of(name), values))) == _same(kustomized)


def _merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    nested = {k: _merged(values.get(k, {}), v) for k, v in more.items() if isinstance(v, dict)}
    return values | more | nested


@rendered
def test_the_chart_makes_the_objects_of_monitoring(tmp_path: Path) -> None:
    asked = {"prometheusOperator": True}
    values = {"clients": "pauseLabels", "monitoring": asked}
    expected = (
        *rendering.overlay("gpu-operator"),
        *rendering.render(rendering.MANIFESTS / "monitoring"),
    )
    assert _same(_objects(values)) == _same(expected)
    values["monitoring"] = asked | {"serviceMonitor": True}
    expected = (*rendering.overlay("gpu-operator"), *rendering.with_service_monitor(tmp_path))
    assert _same(_objects(values)) == _same(expected)


def test_every_overlay_and_component_has_its_values() -> None:
    """But `dra`, which is in the overlay `dra`."""
    assert {path.stem for path in (CHART / "values").iterdir()} == set(rendering.OVERLAYS)
    components = {path.name for path in (rendering.MANIFESTS / "components").iterdir()}
    assert set(chain.from_iterable(row[1] for row in OF_COMPONENTS)) == components - {"dra"}


def test_values_of_a_users_own() -> None:
    digest = f"sha256:{'0' * 64}"
    values = {
        "image": {"repository": "own/nodeagent", "digest": digest, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "driver": "host",
        "dra": {"mode": "dynamic", "share": 4, "shareMig": "time"},
        "resources": {"limits": {"memory": "1Gi"}},
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "gpu", "nvidia.com/gpu.present": None},
        "podAnnotations": {"team": "ml"},
        "settings": {"drift": "report", "dra": {"mps_user": "any"}},
    }
    documents = _objects(values)
    pod, container = rendering.pod_of(documents)
    for each in (container, *pod["initContainers"]):
        assert each["image"] == f"own/nodeagent@{digest}"
        assert each["imagePullPolicy"] == "Always"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert container["resources"]["requests"] == {"cpu": "20m", "memory": "96Mi"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    template = rendering.one(documents, "DaemonSet")["spec"]["template"]
    assert template["metadata"]["annotations"]["team"] == "ml"
    assert yaml.safe_load(rendering.one(documents, "ConfigMap")["data"]["settings.yaml"]) == {
        "dra": {"mode": "dynamic", "share": 4, "share_mig": "time", "mps_user": "any"},
        "drift": "report",
        "mps": {"launch": "hostSystemd"},
    }


@pytest.mark.parametrize(("source", "file"), [("file", "plan.yaml"), ("mig-config", "config.yaml")])
@pytest.mark.parametrize("plan", ["version: v1\ngpus: []\n", {"version": "v1", "gpus": []}])
def test_the_plan_of_a_users_own(source: str, file: str, plan: Any) -> None:
    data = rendering.one(_objects({"source": source, "plan": plan}), "ConfigMap", "nodeagent-plan")[
        "data"
    ]
    assert set(data) == {file}
    assert yaml.safe_load(data[file]) == {"version": "v1", "gpus": []}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sorce": "file"}, "sorce"),
        ({"source": "label"}, "source"),
        ({"dra": {"mode": "dynamic", "share": 1}}, "share"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"simulated": "h100 x 2"}, "simulated"),
        ({"plan": "version: v1"}, "plan: it counts with `source: file`"),
        ({"dra": {"nvidiaNames": True}}, "dra.nvidiaNames"),
        ({"settings": {"dra": {"mode": "static"}}}, "settings: dra.mode"),
        ({"simulated": "h100-80gb:2", "dra": {"mode": "dynamic"}}, "nothing of the host"),
    ],
)
def test_values_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        _rendered(values)


@pytest.mark.parametrize("mode", ["off", False])
def test_an_off_without_quotes_is_off(mode: Any) -> None:
    assert _objects({"dra": {"mode": mode, "share": mode}}) == _objects({})


@pytest.mark.parametrize("name", rendering.OVERLAYS)
def test_helm_lint(name: str) -> None:
    report = helm.lint(CHART, _of(name), strict=True)
    assert [found for found in report["messages"] if found["severity"] > 1] == []


def test_the_release_is_in_the_namespace_of_the_objects_or_in_another() -> None:
    """Helm has made its own release's namespace, and would refuse to make it again."""
    elsewhere, there = _objects({}), _objects({}, namespace="nodeagent")
    assert set(_same(elsewhere)) - set(_same(there)) == {("Namespace", "", "nodeagent")}


def test_the_notes_speak_of_what_was_installed() -> None:
    """The answers of a source's user, claims where they are served, the label that lacks."""
    notes = {
        name: _rendered(_of(name), "nodeagent")["nodeagent/templates/NOTES.txt"]
        for name in rendering.OVERLAYS
    }
    assert [n for n, text in notes.items() if "get deviceclasses" in text] == ["dra"]
    assert [n for n, text in notes.items() if "gpu-partitioning=mig." in text] == ["nos"]
    assert [n for n, text in notes.items() if "enforce=restricted" in text] == ["simulated"]
    for simulated in ("simulated GPUs (h100-80gb:2)", "nodeagent check --simulate h100-80gb:2"):
        assert [n for n, text in notes.items() if simulated in text] == ["simulated"]
    assert [n for n, text in notes.items() if "annotate node NODE" not in text] == ["nos"]


def test_the_packed_chart_is_the_same(tmp_path: Path) -> None:
    write_chart(tmp_path / "chart.tgz")
    with helm.Chart.load(tmp_path / "chart.tgz") as packed:
        assert packed.version == packed.metadata["appVersion"] == __version__
        assert _rendered(CLAIMS, chart=packed) == _rendered(CLAIMS)


# --- at a real API server -----------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[real_api_server.RealApiServer]:
    """One of its own: a namespace that Helm deletes stays for ever where nothing ends it."""
    with real_api_server.RealApiServer(tmp_path).running() as server:
        yield server


@rendered
@pytest.mark.skipif(bool(real_api_server.why_not()), reason=real_api_server.why_not())
def test_helm_installs_a_policy_before_the_rights_that_it_limits(
    server: real_api_server.RealApiServer,
) -> None:
    """Also where an upgrade adds both; and nothing is left of what it uninstalls."""
    config = helm.Config(
        kubeconfig_content="{apiVersion: v1, kind: Config}",
        kube_apiserver=server.url,
        kube_token=server.token,
        kube_insecure_skip_tls_verify=True,
    )
    with config:
        config.install(_chart(), "nodeagent", CLAIMS)
        config.upgrade(_chart(), "nodeagent", CLAIMS | {"evictions": True})
        documents = _in_order(server)
        rights_follow_policies(documents)
        rendering.one(documents, "ClusterRoleBinding", "nodeagent-evictions")
        config.uninstall("nodeagent")
        assert _in_order(server) == []


def _in_order(server: real_api_server.RealApiServer) -> list[rendering.Document]:
    """The cluster's policies and rights of the chart in the order in which they were made."""
    access = (f"--server={server.url}", f"--token={server.token}", "--insecure-skip-tls-verify")
    policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    kinds = f"{policies},clusterroles,clusterrolebindings,roles,rolebindings"
    ours = ("--all-namespaces", "--selector=app.kubernetes.io/name=nodeagent")
    done = subprocess.run(
        ["kubectl", "--kubeconfig=/dev/null", *access, "get", kinds, *ours, "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    items = json.loads(done.stdout)["items"]
    return sorted(items, key=lambda item: int(item["metadata"]["resourceVersion"]))
