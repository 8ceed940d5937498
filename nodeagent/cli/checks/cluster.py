"""Preflight: the cluster, as far as the agent's own account may see it.

Nothing is changed: what is tried are patches that hold nothing and are dry runs besides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.cli import event_loop
from nodeagent.cli.checks import host as host_preflight
from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.errors import NodeagentError, UsageError

if TYPE_CHECKING:
    from nodeagent.cluster.client.access import ClusterAccess, Right
    from nodeagent.cluster.client.node_view import NodeView
    from nodeagent.plan.desired import PlanDocument
    from nodeagent.settings import KubeletSettings, KubernetesSettings, PlanSettings

_ANSWER = 5.0  # seconds for one answer of the API server, since a person waits
_RIGHTS = "kubectl apply -f manifests/base/rights.yaml; docs/security.md has what each is for"
_BASIC = "the role system:basic-user lets every account ask; is it still bound?"
_ACCOUNT = "check kubernetes.kubeconfig, or the pod's service account"
_AGAIN = "look at the API server, and try again"
_RUNTIME_CLASS = "nvidia"  # of the DaemonSet in manifests/base
_NO_RUNTIME_CLASS = (
    "let the GPU Operator make it, or make it as docs/install.md says; or use an overlay or "
    "component that needs none (simulated, driver-from-host, driver-from-operator)"
)
_MIG_CONFIG = "nvidia.com/mig.config"
_NOS_SPEC = "nos.nebuly.com/spec-"
_MAPPED = "manifests/overlays/nos/rights.yaml gives it"


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """What was found, and the Node, None where there is none to be seen."""

    findings: tuple[Finding, ...]
    node: NodeView | None = None


def look(settings: KubernetesSettings, node: str, source: str) -> ClusterFindings:
    """Ask the API server what the agent will ask it; `source` is where the plan comes from."""
    return event_loop.run(_look(settings, node, source))


async def _look(settings: KubernetesSettings, name: str, source: str) -> ClusterFindings:
    from nodeagent.cluster.client.access import ClusterAccess
    from nodeagent.cluster.client.credentials import credentials_of
    from nodeagent.cluster.drain.hooks import rules_of, tolerated_in

    try:
        rules_of(settings), tolerated_in(settings)
    except UsageError as wrong:
        return ClusterFindings((error("settings", wrong.message, wrong.remedy),))
    async with ClusterAccess(
        credentials_of(settings.kubeconfig, settings.context), answer_within=_ANSWER
    ) as access:
        finding, view = await _node(access, name)
        if view is None:
            return ClusterFindings((*finding,))
        rest = [found async for found in _of_the_node(access, settings, view, source)]
        return ClusterFindings((*finding, *rest), view)


async def _node(access: ClusterAccess, name: str) -> tuple[tuple[Finding, ...], NodeView | None]:
    from nodeagent.cluster.client.faults import (
        ClusterFault,
        ClusterUnreachable,
        CredentialsUnusable,
        NotAllowed,
    )
    from nodeagent.cluster.client.node_view import OWN_NODE, view_of

    try:
        listed = await access.list_node(name)
        view = view_of(listed.node, OWN_NODE) if listed.node is not None else None
    except CredentialsUnusable as fault:
        return (error("credentials", fault.message, fault.remedy or _ACCOUNT),), None
    except NotAllowed as fault:
        return (error("rights", fault.message, _RIGHTS),), None
    except ClusterUnreachable as fault:
        remedy = "is that the server's address, and may this machine or pod reach it?"
        return (error("API server", fault.message, remedy),), None
    except ClusterFault as fault:
        return (error("API server", fault.message, fault.remedy or _AGAIN),), None
    answers = ok("API server", f"{access.server} answers, and knows who asks")
    if view is None:
        remedy = "set node_name to its name among: kubectl get nodes"
        return (answers, error("Node", f"the cluster has no Node {name}", remedy)), None
    return (answers, ok("Node", f"{name} is there")), view


async def _of_the_node(
    access: ClusterAccess, settings: KubernetesSettings, view: NodeView, source: str
) -> AsyncIterator[Finding]:
    from nodeagent.cluster.client.faults import ClusterFault

    try:
        await access.try_changing_node(view.name)
        yield ok("Node's changes", f"{view.name} may be changed")
    except ClusterFault as fault:
        yield error("Node's changes", fault.message, _remedy_of(fault))
    async for finding in _rights(access, settings):
        yield finding
    async for finding in _runtime_class(access):
        yield finding
    async for finding in _owners(access, settings, view, source):
        yield finding


def _remedy_of(fault: NodeagentError) -> str:
    from nodeagent.cluster.client.faults import NotAllowed, RequestRefused

    if "Policy" in fault.message:
        return (
            "the token has to be bound to this very Node, as a pod's is, or one of kubectl create "
            "token --bound-object-kind Node"
        )
    return _RIGHTS if isinstance(fault, NotAllowed | RequestRefused) else fault.remedy or _AGAIN


async def _rights(access: ClusterAccess, settings: KubernetesSettings) -> AsyncIterator[Finding]:
    """Those that are not seen by using them."""
    from nodeagent.cluster.client.faults import ClusterFault

    missing = 0
    for right, without, remedy in _needed(settings):
        try:
            if await access.may(right):
                continue
        except ClusterFault as fault:
            yield warning("rights", f"they cannot be asked for: {fault.message}", _BASIC)
            return
        missing += 1
        where = f" in {right.namespace}" if right.namespace else ""
        yield warning(
            "rights", f"no right to {right.verb} {right.resource}{where}: {without}", remedy
        )
    if not missing:
        yield ok("rights", "all that are needed are there")


def _needed(settings: KubernetesSettings) -> Iterator[tuple[Right, str, str]]:
    """What has to be allowed, what will be without it, and who gives it."""
    from nodeagent.cluster.client.access import Right

    yield Right("watch", "nodes"), "changes of the Node are seen late", _RIGHTS
    for verb in ("create", "patch"):
        yield Right(verb, "events", "default"), "Events about the Node are not published", _RIGHTS
    finished = "devices of pods that have ended may count as in use"
    yield Right("get", "pods"), finished, _RIGHTS
    if settings.clients == "deletePods":
        goes_on = "the device plugin goes on offering what is gone"
        component = "add the component plugin-pod-deletion, or take another kubernetes.clients"
        yield Right("delete", "pods"), goes_on, component
    if settings.nos_config_map:
        namespace, _, name = settings.nos_config_map.partition("/")
        shares = "nos' MPS nodes get no plan"
        yield Right("get", "configmaps", namespace, name), shares, _MAPPED


async def _runtime_class(access: ClusterAccess) -> AsyncIterator[Finding]:
    """Without it the DaemonSet's pods are not created. This is checked for the installer: the
    agent's account may not read it, and an agent in such a pod shows that it exists.
    """
    from nodeagent.cluster.client.faults import ClusterFault, NotAllowed

    check = "RuntimeClass"
    try:
        if await access.has_runtime_class(_RUNTIME_CLASS):
            yield ok(check, f"{_RUNTIME_CLASS} is there")
        else:
            yield warning(
                check,
                f"the cluster has no RuntimeClass {_RUNTIME_CLASS}, which the DaemonSet names: its "
                "pods are not created",
                _NO_RUNTIME_CLASS,
            )
    except NotAllowed:
        return
    except ClusterFault as fault:
        yield warning(check, fault.message, fault.remedy or _AGAIN)


async def _owners(
    access: ClusterAccess, settings: KubernetesSettings, view: NodeView, source: str
) -> AsyncIterator[Finding]:
    """Who else splits the node's GPUs, by its pods."""
    from nodeagent.cluster.client.faults import ClusterFault
    from nodeagent.cluster.drain.hooks import tolerated_in
    from nodeagent.cluster.drain.node import pod_of
    from nodeagent.cluster.drain.owners import owned_by_others

    check, pods = "other managers", None
    try:
        pods = tuple(map(pod_of, await access.list_pods(view.name)))
    except ClusterFault as fault:
        yield warning(check, f"only labels can show them: {fault.message}", _remedy_of(fault))
    found = owned_by_others(view, pods, source=source, tolerated=tolerated_in(settings))
    for problem in found:
        yield error(check, problem.message, problem.remedy)
    if not found:
        yield ok(check, "no other program of the cluster splits this node's GPUs")


def kubelet_finding(
    settings: KubeletSettings, *, in_cluster: bool, simulated: bool
) -> Finding | None:
    """Whether the kubelet reports who holds devices; None where the agent would not ask it."""
    if settings.use == "never" or (settings.use == "auto" and simulated):
        return None
    if settings.use == "auto" and not in_cluster and not settings.socket.parent.exists():
        return None
    from nodeagent.cluster.kubelet.pod_resources import KubeletError, PodResourcesClient

    client = PodResourcesClient(settings.socket, deadline=settings.deadline)
    try:
        held = event_loop.run(client.allocations())
    except KubeletError as failure:
        message = f"{failure.message}; so every device counts as in use"
        return error("kubelet", message, failure.remedy or "look at the kubelet's log")
    holdings = {(one.pod, one.container, one.resource) for one in held if one.resource}
    return ok("kubelet", f"answers; {len(holdings)} holdings of devices are known to it")


def asked_of_the_node(
    node: NodeView, source: str, plan: PlanSettings
) -> tuple[Finding, PlanDocument | None]:
    """What the Node asks for; the document where it is one that can be read without the cards."""
    match source:
        case "annotation":
            from nodeagent.cluster.plan_sources import annotation

            file = host_preflight.file_offer(plan.file, plan.name)
            offer = annotation.offer(node.annotations, file)
            where = f"what the annotations of Node {node.name} ask for"
            return host_preflight.offer_finding(offer, where, f"annotate it with {annotation.PLAN}")
        case "mig-config":
            name = node.labels.get(_MIG_CONFIG)
            remedy = f"label it with a configuration's name: {_MIG_CONFIG}=NAME"
            return _asked(_MIG_CONFIG, "label", [name] if name else [], remedy), None
        case _:
            specs = [value for key, value in node.annotations.items() if key.startswith(_NOS_SPEC)]
            remedy = "nos' partitioner writes them when it plans for the node"
            return _asked(f"{_NOS_SPEC}*", "annotation", specs, remedy), None


def _asked(key: str, kind: str, values: Sequence[str], remedy: str) -> Finding:
    if not values:
        return warning("plan", f"the Node has no {kind} {key}", remedy)
    return ok("plan", f"asked for by {kind} {key}: {', '.join(values)}")
