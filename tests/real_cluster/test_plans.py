"""A plan in an annotation of a real Node, and what the agent costs while nothing changes."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.machine_load import wait_until
from tests.manifests.rendering import MANIFESTS
from tests.real_cluster.rig import AGENT, NODE, Cluster, Member, Node, place
from tests.simulated_cluster.agent import PLAN, STATUS, in_sync

HALVES = "version: v1\ngpus: [{devices: all, mig: {3g.40gb: 2}}]\n"


def await_status(cluster: Cluster, node: str, plan: str) -> None:
    def said() -> dict[str, Any]:
        found = cluster.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations", {})
        return dict(json.loads(found.get(STATUS, "{}")))

    wait_until(lambda: in_sync(plan)(said()), said=said)


def test_a_plan_and_its_status(member: Member) -> None:
    """The cards become as the annotation says, and the Node says so."""
    member.cluster.annotate(member.node, PLAN, HALVES)
    member.run_agent()
    await_status(member.cluster, member.node, HALVES)
    assert member.slices() == [(gpu, start, 4) for gpu in range(8) for start in (0, 4)]
    member.cluster.annotate(member.node, PLAN, None)


def test_the_agent_in_a_pod(cluster: Cluster, tmp_path: Path) -> None:
    """The overlay for trying out, as shipped: its pod is ready and does what its Node says."""
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
    """By the API server's audit log: with a running pod it comes to read and write nothing for a
    minute, in which two watches of its Node end and begin.
    """
    log = node.place.audit_log
    if log is None:
        pytest.skip("no audit log")
    begun = datetime.now(UTC)
    node.pod("idle")
    node.until_running("idle")

    def last_watches() -> Counter[str]:
        if "short of processor time" in json.dumps(node.status()):
            pytest.skip("the machine is busy, and the agent reports when it is and when not")
        asked = reversed(list(requests(log, begun)))
        return Counter(of for _, of in takewhile(lambda one: one[0] == "watch", asked))

    node.until(lambda: last_watches()["nodes"] >= 3, seconds=200)
    assert last_watches()["resourceslices"] <= 1


def requests(audit_log: Path, since: datetime) -> Iterator[tuple[str, str]]:
    """The agent's requests that the API server logged since then: verb and resource of each."""
    seen = set()
    for line in audit_log.read_bytes().splitlines():
        one = json.loads(line)
        begun = datetime.fromisoformat(one["requestReceivedTimestamp"])
        if one["user"]["username"] == AGENT and begun >= since and one["auditID"] not in seen:
            seen.add(one["auditID"])  # a watch is logged at its begin and at its end
            yield one["verb"], one["objectRef"]["resource"]
