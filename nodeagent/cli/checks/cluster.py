"""Preflight: the cluster, as far as the agent's own account may see it.

Nothing is changed: what is tried are dry runs of patches that hold nothing, or what must be denied.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from nodeagent.claims.names import NVIDIA_DRIVER
from nodeagent.cli import event_loop
from nodeagent.cli.checks import PreflightFinding, error, ok, warning
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.credentials import credentials_of
from nodeagent.cluster.client.node_view import NodeView, read_node
from nodeagent.cluster.client.requests import DRA_GROUP, Right
from nodeagent.cluster.drain.hooks import check_settings
from nodeagent.cluster.drain.other_managers import owned_by_others
from nodeagent.cluster.drain.pods import read_pod
from nodeagent.cluster.guard import is_guarded
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.plan.problems import Code, Problem
from nodeagent.settings import KubernetesSettings
from nodeagent.settings.cluster import DraSettings

_TIMEOUT = 5.0  # seconds for one answer of the API server, since a person waits
_RIGHTS = "kubectl apply -f manifests/base/rights.yaml; docs/security.md has what each is for"
_RETRY_REMEDY = "check the API server, and try again"
_RUNTIME_CLASS = "nvidia"  # of the DaemonSet in manifests/base
_DRA = "apply manifests/components/dra/rights.yaml (the component dra), or set dra.mode: off"
_SHARES = "shares of GPUs"
_NOT_BOUND = (
    "the token has to be bound to this Node, as a pod's is, or one of kubectl create "
    "token --bound-object-kind Node"
)


def cluster_findings(
    settings: KubernetesSettings, name: str, source: str, dra: DraSettings, kubelet_dir: Path
) -> tuple[list[PreflightFinding], NodeView | None]:
    """Asks the API server what the agent will ask it; with the Node, None where it is not seen.

    `source` is where the plan comes from.
    """
    try:
        check_settings(settings)
    except UsageError as wrong:
        return [error("settings", wrong)], None
    return event_loop.run(_findings(settings, name, source, dra, kubelet_dir))


async def _findings(
    settings: KubernetesSettings, name: str, source: str, dra: DraSettings, kubelet_dir: Path
) -> tuple[list[PreflightFinding], NodeView | None]:
    credentials = credentials_of(settings.kubeconfig, settings.context, name)
    is_named_so = dra.mode != "off" and dra.driver == NVIDIA_DRIVER
    async with ClusterAccess(credentials, answer_within=_TIMEOUT) as access:
        try:
            view = (await access.listed(requests.list_node(name), read_node)).first
        except faults.ClusterFault as fault:
            return [_unreadable_node(fault)], None
        found = [ok("API server", f"{access.server} answers and accepts the account")]
        if view is None:
            return [*found, error("Node", NodeagentError.of("noNode", name=name))], None
        return [
            *found,
            ok("Node", f"the Node {name} exists"),
            *await _changes(access, name),
            *await _rights(access, settings, claims=dra.mode != "off"),
            *(await _driver_name(access, name, kubelet_dir) if is_named_so else []),
            *await _runtime_class(access),
            *await _other_managers(access, settings, view, source),
        ], view


def _unreadable_node(fault: faults.ClusterFault) -> PreflightFinding:
    match fault:
        case faults.CredentialsUnusable():
            return error("credentials", fault)
        case faults.NotAllowed():
            return error("rights", NodeagentError(fault.message), _RIGHTS)
        case faults.ClusterUnreachable():
            return error("API server", NodeagentError.of("serverUnreachable", why=fault.message))
        case _:
            return error("API server", fault, _RETRY_REMEDY)


async def _changes(access: ClusterAccess, name: str) -> list[PreflightFinding]:
    try:
        await access.send(requests.patch_node(name, {}, dry_run=True))
        await access.send(requests.patch_node_status(name, {}, dry_run=True))
        guarded = await is_guarded(access, name)
    except faults.ClusterFault as fault:
        return [error("Node's changes", NodeagentError(fault.message), _remedy_of(fault))]
    changes = ok("Node's changes", f"{name} may be changed")
    if not guarded:
        return [changes, warning("limits", Problem.of(Code.UNGUARDED))]
    return [changes, ok("limits", "a policy limits what the account may change of Nodes")]


def _remedy_of(fault: faults.ClusterFault) -> str:
    if "Policy" in fault.message:
        return _NOT_BOUND
    if isinstance(fault, faults.NotAllowed | faults.RequestRefused):
        return _RIGHTS
    return fault.remedy or _RETRY_REMEDY


async def _rights(
    access: ClusterAccess, settings: KubernetesSettings, *, claims: bool
) -> list[PreflightFinding]:
    """Check the rights that are not seen by using them."""
    missing: list[PreflightFinding] = []
    for right, without, remedy in _needed(settings, claims=claims):
        try:
            allowed = await _may(access, right)
        except faults.ClusterFault as fault:
            unasked = NodeagentError.of("rightsUnasked", why=fault.message)
            return [*missing, warning("rights", unasked)]
        if not allowed:
            where = f" in {right.namespace}" if right.namespace else ""
            message = f"no right to {right.verb} {right.resource}{where}: {without}"
            missing.append(warning("rights", NodeagentError(message), remedy))
    return missing or [ok("rights", "the account has all that are needed")]


async def _may(access: ClusterAccess, right: Right) -> bool:
    review = await access.ask(requests.review_access(right), requests.read_review)
    return review.status.allowed


def _needed(settings: KubernetesSettings, *, claims: bool) -> Iterator[tuple[Right, str, str]]:
    """What has to be allowed, what will be without it, and who gives it."""
    yield Right("watch", "nodes"), "changes of the Node are seen late", _RIGHTS
    for verb in ("create", "patch"):
        yield Right(verb, "events", "default"), "Events about the Node are not published", _RIGHTS
    if settings.clients == "deletePods":
        goes_on = "the device plugin goes on offering devices that are gone"
        component = (
            "add the component plugin-pod-deletion, or set kubernetes.clients to another value"
        )
        yield Right("delete", "pods"), goes_on, component
    if claims:
        for verb in ("list", "watch", "create", "update", "delete"):
            slices = Right(verb, "resourceslices", group=DRA_GROUP)
            yield slices, "claims are not offered what there is", _DRA
        yield Right("get", "resourceclaims", group=DRA_GROUP), "no claim is prepared", _DRA
        unseen = "claims are not refused for what a container cannot use together"
        yield Right("get", "pods"), unseen, _DRA
        status = Right("patch", "resourceclaims/status", group=DRA_GROUP)
        yield status, "claims do not show what became of their devices", _DRA


async def _driver_name(
    access: ClusterAccess, node: str, kubelet_dir: Path
) -> list[PreflightFinding]:
    from nodeagent.cluster.driver_name import name_taken  # loads gRPC

    check = "DRA driver"
    try:
        taken = await name_taken(access, node, kubelet_dir)
    except NodeagentError as unknown:
        return [warning(check, unknown, _RETRY_REMEDY)]
    if taken:
        return [error(check, taken)]
    return [ok(check, f"{NVIDIA_DRIVER} is free for this node's agent")]


async def counting(settings: KubernetesSettings) -> PreflightFinding:
    """Ask the API server for its version, and judge that."""
    credentials = credentials_of(settings.kubeconfig, settings.context, "NODE")
    async with ClusterAccess(credentials, answer_within=_TIMEOUT) as access:
        try:
            version = await access.ask(requests.get_version(), read_object)
        except faults.ClusterFault as fault:
            return warning(_SHARES, fault, _RETRY_REMEDY)
    return counting_finding(str(version.get("gitVersion")))


def counting_finding(version: str) -> PreflightFinding:
    """Find out whether the scheduler, which has the API server's version as a rule, counts shares
    of GPUs.
    """
    release = [int(part) for part in re.findall("[0-9]+", version)[:3]]
    if release < [1, 36, 2]:
        return warning(_SHARES, NodeagentError.of("sharesUncounted", version=version))
    if release < [1, 37]:
        message = (
            f"Kubernetes {version} counts them; before 1.37 a claim for several devices may wait "
            "although they are free (kubernetes #140436)"
        )
        return ok(_SHARES, message)
    return ok(_SHARES, f"Kubernetes {version} counts them")


async def _runtime_class(access: ClusterAccess) -> list[PreflightFinding]:
    """Check the RuntimeClass, without which the DaemonSet's pods are not created. It is for the
    installer: the agent's account may not read it, and an agent in such a pod shows that it exists.
    """
    check = "RuntimeClass"
    try:
        if await access.find(requests.get_runtime_class(_RUNTIME_CLASS), read_object) is not None:
            return [ok(check, f"{_RUNTIME_CLASS} is there")]
    except faults.NotAllowed:
        return []
    except faults.ClusterFault as fault:
        return [warning(check, fault, _RETRY_REMEDY)]
    return [warning(check, NodeagentError.of("noRuntimeClass", name=_RUNTIME_CLASS))]


async def _other_managers(
    access: ClusterAccess, settings: KubernetesSettings, view: NodeView, source: str
) -> list[PreflightFinding]:
    check, pods, found = "other managers", None, []
    try:
        pods = (await access.listed(requests.list_pods(view.name), read_pod)).items
    except faults.ClusterFault as fault:
        unseen = NodeagentError(f"only labels can show them: {fault.message}")
        found.append(warning(check, unseen, _remedy_of(fault)))
    others = owned_by_others(view, pods, source=source, tolerated=settings.tolerate)
    if not others:
        return [*found, ok(check, "no other program of the cluster splits this node's GPUs")]
    return [*found, *(error(check, other) for other in others)]
