"""A plan in an annotation of a real Node, and what the agent costs while nothing changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS
from tests.real_cluster.rig import AGENT, NODE, Cluster, Member, Node, place, until
from tests.simulated_cluster.agent import PLAN, STATUS, in_sync

HALVES = "version: v1\ngpus: [{devices: all, mig: {3g.40gb: 2}}]\n"


def await_status(cluster: Cluster, node: str, plan: str) -> None:
    """Wait until the Node says that it is as the plan asks for."""

    def said() -> dict[str, Any]:
        found = cluster.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations", {})
        return dict(json.loads(found.get(STATUS, "{}")))

    until(lambda: in_sync(plan)(said()), lambda: json.dumps(said()))


def test_a_plan_and_its_status(member: Member) -> None:
    """The cards become as the annotation says, and the Node says so."""
    member.cluster.annotate(member.node, PLAN, HALVES)
    member.run_agent()
    await_status(member.cluster, member.node, HALVES)
    assert member.slices() == [(gpu, start, 4) for gpu in range(8) for start in (0, 4)]
    member.cluster.annotate(member.node, PLAN, None)


def test_the_agent_in_a_pod(cluster: Cluster, tmp_path: Path) -> None:
    """The overlay for trying out, as it is shipped: its pod becomes ready and does what its Node's
    annotation says.
    """
    if not NODE or not place().agent_image:
        pytest.skip("no image of the agent")
    here, (image, _, tag) = place().name, place().agent_image.partition(":")
    selected = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": here}}}}
    patch = {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": selected}
    patch["metadata"] = {"name": "nodeagent", "namespace": "nodeagent"}
    overlay = {
        "resources": [os.path.relpath(MANIFESTS / "overlays" / "simulated", tmp_path)],
        "images": [{"name": "nodeagent", "newName": image, "newTag": tag}],
        "patches": [{"patch": yaml.safe_dump(patch)}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    cluster.annotate(here, PLAN, HALVES)
    cluster.kubectl("apply", "-k", str(tmp_path))
    cluster.kubectl("-n", "nodeagent", "rollout", "status", "daemonset/nodeagent", "--timeout=120s")
    await_status(cluster, here, HALVES)
    command = ("exec", "daemonset/nodeagent", "--", "nodeagent", "status")
    assert "3g.40gb" in cluster.kubectl("-n", "nodeagent", *command)
    cluster.annotate(here, PLAN, None)
    cluster.kubectl("-n", "nodeagent", "delete", "daemonset", "nodeagent")


def test_an_idle_agent_only_watches(node: Node) -> None:
    """By the API server's audit log: with a running pod nothing is read or written, and watches
    are opened again seldom.
    """
    if node.place.audit_log is None:
        pytest.skip("no audit log")
    node.pod("idle")
    node.until_running("idle")
    node.until(lambda: not changed_lately(node))
    begun = datetime.now(UTC)
    node.until(lambda: asked(node, begun)["watch", "nodes"] >= 2)
    assert set(asked(node, begun)) <= {("watch", "nodes"), ("watch", "resourceslices")}
    assert asked(node, begun)["watch", "resourceslices"] <= 1


def changed_lately(node: Node) -> bool:
    """Whether the agent asked for anything but watches in the last ten seconds."""
    recent = asked(node, datetime.now(UTC) - timedelta(seconds=10))
    return any(verb != "watch" for verb, _ in recent)


def asked(node: Node, since: datetime) -> Counter[tuple[str, str]]:
    """The agent's requests that the API server logged since then: verb and resource of each."""
    assert node.place.audit_log is not None
    found = {}
    with node.place.audit_log.open("rb") as log:
        for line in log:
            one = json.loads(line)
            is_agent = one["user"]["username"] == AGENT
            if is_agent and datetime.fromisoformat(one["requestReceivedTimestamp"]) >= since:
                found[one["auditID"]] = (one["verb"], one["objectRef"]["resource"])
    return Counter(found.values())
