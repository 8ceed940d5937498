"""Every overlay can be applied as it is shipped, and what guards an agent's rights is in force."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS, OVERLAYS, render
from tests.real_cluster.conftest import FOREIGN
from tests.real_cluster.rig import AGENT, Cluster, Member

ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NODE_OF = "Impersonate_Extra_Authentication.kubernetes.io%2Fnode_Name"
TAINT = {"key": "a", "effect": "NoSchedule"}
COMPONENTS = sorted(path.name for path in (MANIFESTS / "components").iterdir())


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_applied(cluster: Cluster, name: str) -> None:
    """All of it is accepted, at the first attempt and again."""
    for _ in range(2):
        cluster.kubectl("apply", "-k", str(MANIFESTS / "overlays" / name))


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_is_applied(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """By itself, and by a server that keeps none of it."""
    ours = os.path.relpath(MANIFESTS, tmp_path)
    mine = {"resources": [f"{ours}/base"], "components": [f"{ours}/components/{name}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    documents = render(tmp_path)
    # Alert rules and pod monitors are of Prometheus' operator.
    text = yaml.safe_dump_all(d for d in documents if "coreos.com" not in d["apiVersion"])
    cluster.kubectl("apply", "--dry-run=server", "-f", "-", said=text.encode())


def test_policies_have_the_types_of_what_they_read(member: Member) -> None:
    """The server's own type checking finds nothing in any expression."""

    def checked() -> list[Any]:
        found = member.cluster.items(ADMISSION)
        ours = [one for one in found if one["metadata"]["name"].startswith("nodeagent-")]
        return ours if all("observedGeneration" in one.get("status", {}) for one in ours) else []

    found = {p["metadata"]["name"]: p["status"].get("typeChecking") for p in member.until(checked)}
    assert "nodeagent-own-node" in found
    assert {name: checking for name, checking in found.items() if checking not in (None, {})} == {}


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"annotations": {"nodeagent.io/plan": "version: v1"}}},
        {"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [TAINT]}},
    ],
    ids=["annotate", "label", "cordon", "taint"],
)
def test_an_agent_writes_to_its_own_node_alone(cluster: Cluster, patch: dict[str, Any]) -> None:
    """With the identity of another Node's agent each of these is denied."""
    headers = {"Impersonate_User": AGENT, NODE_OF: "another"}
    path = f"/api/v1/nodes/{FOREIGN}?dryRun=All"
    code, said = cluster.ask("PATCH", path, patch, **headers)
    assert (code, said.get("reason")) == (403, "Forbidden"), said
    assert "nodeagent-own-node" in said["message"]
