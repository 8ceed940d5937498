import re
from pathlib import Path
from typing import Any

import pytest

from nodeagent.settings import load_settings
from tests.manifests import rendering
from tests.monitoring.scraped import JOB
from tools.make_dashboard import DASHBOARD, USE
from tools.make_prometheus_rule import RULES

rendered = pytest.mark.skipif(bool(rendering.why_not()), reason=rendering.why_not())
(MONITOR,) = rendering.written("monitoring/pod-monitor.yaml")
(SERVICE_MONITOR,) = rendering.written("monitoring/service-monitor/service-monitor.yaml")
POD_ENDPOINTS = MONITOR["spec"]["podMetricsEndpoints"]
SERVICE_ENDPOINTS = SERVICE_MONITOR["spec"]["endpoints"]


def test_the_monitor_finds_the_pods() -> None:
    daemon_set = rendering.one(rendering.written("base/daemonset.yaml"), "DaemonSet")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert MONITOR["metadata"]["namespace"] == daemon_set["metadata"]["namespace"]
    assert MONITOR["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[MONITOR["spec"]["jobLabel"]] == JOB
    jobs = set(re.findall(r'job="(\w+)"', RULES.read_text(encoding="utf-8")))
    assert jobs == {JOB}


@pytest.mark.parametrize("endpoints", [POD_ENDPOINTS, SERVICE_ENDPOINTS])
def test_the_agents_own_pod_is_no_label(endpoints: list[dict[str, Any]]) -> None:
    (endpoint,) = endpoints
    drop, name = endpoint["relabelings"]
    assert endpoint["honorLabels"]
    assert drop["action"] == "labeldrop"
    for label in ("namespace", "pod", "container"):
        assert re.fullmatch(drop["regex"], label)
    for label in ("instance", "job"):
        assert not re.fullmatch(drop["regex"], label)
    assert name["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    assert name["targetLabel"] == "instance"


@rendered
@pytest.mark.parametrize("overlay", ["plain", "simulated"])
def test_the_component_opens_one_port(overlay: str, tmp_path: Path) -> None:
    documents = rendering.with_components(tmp_path, overlay, ["monitoring"])
    _, container = rendering.pod_of(documents)
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    (port,) = container["ports"]
    assert port["name"] == endpoint["port"]
    (listen,) = (e["value"] for e in container["env"] if e["name"] == "NODEAGENT_METRICS_LISTEN")
    assert listen == f":{port['containerPort']}"
    address = load_settings(None, {"NODEAGENT_METRICS_LISTEN": listen}, {}).metrics.listen
    assert address is not None
    assert address.port == port["containerPort"]
    policy = rendering.one(documents, "NetworkPolicy")
    assert policy["spec"]["ingress"] == [
        {"ports": [{"port": port["containerPort"], "protocol": "TCP"}]}
    ]


@rendered
def test_a_service_monitor_takes_the_place_of_the_pod_monitor(tmp_path: Path) -> None:
    found = rendering.with_service_monitor(tmp_path)
    kinds = {d["kind"]: d for d in found}
    assert set(kinds) == {"ConfigMap", "Service", "ServiceMonitor", "PrometheusRule"}
    service, monitor = kinds["Service"], kinds["ServiceMonitor"]["spec"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == JOB
    assert service["spec"]["selector"] == MONITOR["spec"]["selector"]["matchLabels"]
    (port,), (endpoint,) = service["spec"]["ports"], monitor["endpoints"]
    assert port["name"] == endpoint["port"]
    assert port["targetPort"] == POD_ENDPOINTS[0]["port"]


@rendered
def test_the_objects_of_operator_and_sidecar_render() -> None:
    found = rendering.render(rendering.MANIFESTS / "monitoring")
    kinds = {d["kind"]: d for d in found}
    assert set(kinds) == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    assert {d["metadata"]["namespace"] for d in found} == {MONITOR["metadata"]["namespace"]}
    dashboard = kinds["ConfigMap"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert list(dashboard["data"].values()) == [
        path.read_text(encoding="utf-8") for path in (USE, DASHBOARD)
    ]
