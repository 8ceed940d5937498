"""The admission policy of Nodes lets an agent write what it has to, and nothing else."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster.drain.changes import CLIENTS
from tests.machine_load import stretched
from tests.manifests.admission import AGENT, Asked, policy
from tests.manifests.node_changes import ALLOWED, DENIED, NODE, PAUSED, Change, annotated
from tests.simulated_cluster import agent, store
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.patching import merged


def _without_empty(node: dict[str, Any]) -> dict[str, Any]:
    """As the API server hands it on: empty maps and lists below the top are left out."""
    return {
        part: {key: value for key, value in content.items() if value not in ({}, [])}
        for part, content in node.items()
    }


def _asked(change: Change, user: str = AGENT) -> Asked:
    after = merged(copy.deepcopy(change.before), change.patch)
    if change.status:
        after["spec"] = change.before["spec"]
    else:
        after["status"] = change.before["status"]
    return Asked(
        "UPDATE",
        "nodes/status" if change.status else "nodes",
        _without_empty(after),
        _without_empty(change.before),
        node=change.node,
        user=user,
    )


@pytest.mark.parametrize("change", ALLOWED, ids=lambda change: change.name)
def test_what_an_agent_has_to_write_is_let_through(change: Change) -> None:
    assert policy("nodeagent-own-node").denials(_asked(change)) == []


@pytest.mark.parametrize("change", DENIED, ids=lambda change: change.name)
def test_everything_else_is_denied(change: Change) -> None:
    denials = policy("nodeagent-own-node").denials(_asked(change))
    assert change.denied in "".join(denials[:1])  # the API server reports the first
    assert denials


# --- managedFields ------------------------------------------------------------------------------

KUBELET = {
    "manager": "kubelet",
    "operation": "Update",
    "subresource": "status",
    "fieldsV1": {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {"f:status": {}}}}},
}
CONTROLLER = {
    "manager": "kube-controller-manager",
    "operation": "Update",
    "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:podCIDR": {}}},
}
HAND = {
    "manager": "kubectl-annotate",
    "operation": "Update",
    "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:nodeagent.io/status": {}}}},
}
OURS = {
    "manager": "nodeagent",
    "operation": "Update",
    "fieldsV1": {"f:metadata": {"f:annotations": {"f:nodeagent.io/layout": {}}}},
}
ANCIENT = {"manager": "ancient-changes", "operation": "Update", "fieldsV1": CONTROLLER["fieldsV1"]}
MANAGERS = [KUBELET, CONTROLLER, HAND, OURS]


def _ancient(spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """The entry of those of old, once a writer of the spec and one of the status are in it."""
    return {
        **ANCIENT,
        "fieldsV1": {
            "f:metadata": {"f:labels": {"f:a": {}}},
            **({"f:spec": spec} if spec else {}),
            **({"f:status": status} if status else {}),
        },
    }


def _of_managers(
    after: list[Any] | None, *, before_it: list[Any] = MANAGERS, status: bool = False
) -> list[str]:
    """The policy's answer to a write of the agent's status that leaves these managers."""
    before = copy.deepcopy(NODE)
    before["metadata"]["managedFields"] = before_it
    patch = annotated(nodeagent__status="{}")
    patch["metadata"]["managedFields"] = after
    change = Change("", patch, before=before, status=status)
    return policy("nodeagent-own-node").denials(_asked(change))


ONE_CIDR: dict[str, Any] = {"f:podCIDRs": {".": {}, 'v:"10.0.0.0/24"': {}}}
TWO_CIDRS: dict[str, Any] = {"f:podCIDRs": {**ONE_CIDR["f:podCIDRs"], 'v:"fd00::/64"': {}}}
READY: dict[str, Any] = {"f:conditions": {'k:{"type":"Ready"}': {"f:status": {}}}}
READY_AND_MORE: dict[str, Any] = {"f:conditions": READY["f:conditions"], "f:images": {}}
WITH_OLD = [_ancient(ONE_CIDR, READY), KUBELET, HAND, OURS]


def test_what_a_write_does_to_managed_fields_is_let_through() -> None:
    """The API server moves managers by itself, and joins an eleventh into the entry of those of
    old: within a field of the spec, by a field of it, or in the status.
    """
    cases: list[tuple[list[Any], list[Any]]] = [
        (MANAGERS, MANAGERS),
        (MANAGERS, [KUBELET, CONTROLLER, OURS]),  # the agent took over what was written by hand
        (MANAGERS, [KUBELET, HAND, OURS, ANCIENT]),  # one was joined to those of old
        (MANAGERS, [KUBELET, CONTROLLER, HAND]),  # its own
        (WITH_OLD, [_ancient(TWO_CIDRS, READY), KUBELET, OURS]),
        (WITH_OLD, [_ancient(ONE_CIDR, READY_AND_MORE), KUBELET, OURS]),
        (WITH_OLD, [_ancient({**ONE_CIDR, "f:taints": {}}, READY), KUBELET, OURS]),
    ]
    for before, after in cases:
        assert _of_managers(after, before_it=before) == []


def test_managed_fields_are_not_wiped() -> None:
    """Not all of them, not one manager's, and not a part of one's; what those of old set stays
    theirs, although their entry may grow.
    """
    no_spec = {**KUBELET, "fieldsV1": {"f:status": {}}}
    less = {**CONTROLLER, "fieldsV1": {"f:spec": {"f:podCIDR": {}}}}
    cases: list[tuple[list[Any], list[Any] | None, str]] = [
        (MANAGERS, None, "kubelet"),
        (MANAGERS, [{}], "kubelet"),
        (MANAGERS, [OURS], "kubelet"),
        (MANAGERS, [KUBELET, HAND, OURS], "kube-controller-manager"),
        (MANAGERS, [KUBELET, less], "kube-controller"),
        (MANAGERS, [no_spec, CONTROLLER, HAND], "kubelet"),
        (MANAGERS, [KUBELET, {**CONTROLLER, "fieldsV1": {}}, HAND], "kube-controller-manager"),
        (WITH_OLD, [KUBELET, HAND, OURS], "ancient-changes"),
        (WITH_OLD, [_ancient({}, READY), KUBELET, HAND, OURS], "ancient-changes"),
        (WITH_OLD, [_ancient(ONE_CIDR, {}), KUBELET, HAND, OURS], "ancient-changes"),
        (
            WITH_OLD,
            [_ancient({"f:podCIDR": {}}, READY_AND_MORE), KUBELET, HAND, OURS],
            "ancient-changes",
        ),
    ]
    for before, after, whose in cases:
        (denied,) = _of_managers(after, before_it=before)
        assert f"not an agent's to change: those of {whose}" in denied


def test_a_status_cannot_touch_managed_fields() -> None:
    """The API server ignores what a write of a sub-resource says of them."""
    assert _of_managers([], status=True) == []


def test_no_other_user_is_concerned() -> None:
    """Who is not the agent may do all this, as far as this policy goes."""
    for change in DENIED:
        asked = _asked(change, user="system:serviceaccount:other:nodeagent")
        assert policy("nodeagent-own-node").denials(asked) == []


def test_every_label_that_is_paused_may_be() -> None:
    for label in CLIENTS:
        before = {**NODE, "metadata": {"name": "gpu-0", "labels": {label: "true"}}}
        pause = {"metadata": {"labels": {label: PAUSED}}}
        assert policy("nodeagent-own-node").denials(_asked(Change("", pause, before=before))) == []


# --- a whole agent ------------------------------------------------------------------------------

DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
TEXT = "version: v1\ngpus: [{devices: all, mig: {1g.10gb: 7}}]\ndevicePluginConfig: a\n"
SETTINGS = {
    "NODEAGENT_KUBERNETES_CLIENTS": "pauseLabels",
    "NODEAGENT_KUBERNETES_CORDON": "true",
    "NODEAGENT_KUBERNETES_ALLOCATABLE_DEADLINE": "100ms",
    "NODEAGENT_KUBERNETES_LAYOUT_LABELS": "true",
}


def _is_asked_for(change: store.Change) -> bool:
    """Whether it is this test's own."""
    return bool(_plan(change.before) != _plan(change.after))


def _plan(node: dict[str, Any] | None) -> Any:
    return (node or {}).get("metadata", {}).get("annotations", {}).get(agent.PLAN)


def _denials(change: store.Change) -> list[str]:
    """What the policies say to a change that the agent made."""
    if change.plural == "events":
        operation = "UPDATE" if change.before else "CREATE"
        asked = Asked(operation, "events", change.after, change.before, node=agent.NAME)
        return policy("nodeagent-own-events").denials(asked)
    assert change.plural == "nodes"
    asked = Asked("UPDATE", "nodes", change.after, change.before, node=agent.NAME)
    return policy("nodeagent-own-node").denials(asked)


async def test_the_agent_writes_only_what_the_policies_let_through(tmp_path: Path) -> None:
    """With a cordon, paused clients, the device plugin's configuration, labels, conditions and
    Events: each of its writes passes.
    """
    changes: asyncio.Queue[store.Change] = asyncio.Queue()
    made: list[store.Change] = []

    def seen(wanted: str) -> bool:
        while not changes.empty():
            made.append(changes.get_nowait())
        return wanted in str([change.after for change in made])

    async with ApiServer() as api:
        api.add_node(agent.NAME, labels={DEPLOY: "true"})
        api.store.watching.add(changes)
        (tmp_path / "kubeconfig").write_text(agent.kubeconfig(api.url))
        async with agent.AgentProcess(
            agent.command("h100-80gb:1", tmp_path), tmp_path, settings=SETTINGS
        ):
            api.annotate(agent.NAME, **{agent.PLAN: TEXT})
            await agent.until_status(api, agent.in_sync(TEXT))
            async with asyncio.timeout(stretched(30)):
                while not (seen("GPUPartitionsReady") and seen("'Event'") and _is_quiet(api)):
                    await asyncio.sleep(0.1)
    wrote = [change for change in made if not _is_asked_for(change)]
    for sign in ("nodeagent.io/cordoned", "paused-for-mig-change", "'unschedulable': True"):
        assert sign in str(wrote), sign
    assert [denial for change in wrote for denial in _denials(change)] == []


def _is_quiet(api: ApiServer) -> bool:
    """Whether what was changed for the time is as it was."""
    node = api.node(agent.NAME)
    return node["metadata"]["labels"][DEPLOY] == "true" and not node["spec"].get("unschedulable")
