"""A plan in an annotation of a real Node, and what the agent costs while nothing changes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.real_cluster.rig import AGENT, Member, Node
from tests.simulated_cluster.agent import PLAN, STATUS, in_sync

HALVES = "version: v1\ngpus: [{devices: all, mig: {3g.40gb: 2}}]\n"


def status(member: Member) -> dict[str, Any]:
    """What the Node says of its agent."""
    found = member.cluster.get(f"/api/v1/nodes/{member.node}")["metadata"]
    return dict(json.loads(found.get("annotations", {}).get(STATUS, "{}")))


def test_a_plan_and_its_status(member: Member) -> None:
    """The cards become as the annotation says, and the Node says so."""
    member.cluster.annotate(member.node, PLAN, HALVES)
    member.run_agent()
    member.until(lambda: in_sync(HALVES)(status(member)))
    assert member.slices() == [(gpu, start, 4) for gpu in range(8) for start in (0, 4)]
    member.cluster.annotate(member.node, PLAN, None)


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
