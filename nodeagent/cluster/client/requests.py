"""All requests that the agent makes of the API server, each a value for `ClusterAccess` to send.

For each there is a right in manifests/, and no right is there without one.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal
from urllib.parse import quote

from msgspec.json import Decoder

from nodeagent.structs import Struct, field, replace

JsonObject = dict[str, Any]

EVENTS_IN: Final = "default"  # where Events about Nodes live
DRA_GROUP: Final = "resource.k8s.io"
_RESOURCES: Final = f"/apis/{DRA_GROUP}/v1"
_SLICES: Final = "resourceslices"


class Request(Struct, frozen=True):
    """One request; `purpose` describes it in a few words.

    `longer` is how many seconds the whole answer may take beyond the time in which it must begin.
    """

    purpose: str
    method: Literal["GET", "PATCH", "POST", "PUT", "DELETE"]
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"
    longer: float = 0.0


class Right(Struct, frozen=True):
    """The right to `verb` a resource (`pods/eviction`); "" is every namespace, or every name."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    group: str = ""


def list_node(name: str) -> Request:
    """The one Node of this name, in a list whose version a watch can begin from."""
    query = {"fieldSelector": f"metadata.name={name}"}
    return Request(f"the list of Node {name}", "GET", _path("nodes"), query)


def watch(listed: Request, *, version: str, seconds: float) -> Request:
    """The changes from `version` on of what a list holds; the server ends it after `seconds`."""
    whole = max(1, ceil(seconds))
    query = {
        **listed.query,
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(whole),
    }
    purpose = listed.purpose.replace("the list", "a watch")
    return replace(listed, purpose=purpose, query=query, longer=whole)


def patch_node(name: str, body: JsonObject, *, dry_run: bool = False) -> Request:
    """A merge patch; the Node as it is then is the answer."""
    return _patch(f"a change of Node {name}", _path("nodes", name), body, dry_run=dry_run)


def patch_node_status(name: str, body: JsonObject, *, dry_run: bool = False) -> Request:
    """A strategic merge patch of the status, whose conditions are merged by type."""
    purpose, path = f"a change of Node {name}'s status", _path("nodes", name, "status")
    return _patch(purpose, path, body, kind="strategic-merge", dry_run=dry_run)


def list_pods(node: str) -> Request:
    """The pods that are bound to this node, in any namespace, finished ones too.

    From the server's cache, which may be a moment behind: to read the newest, many servers go
    through all the pods of the cluster.
    """
    query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
    return Request(f"the list of the pods on {node}", "GET", _path("pods"), query)


def get_pod(namespace: str, name: str) -> Request:
    """The newest of one pod."""
    path = _path("pods", name, namespace=namespace)
    return Request(f"the pod {namespace}/{name}", "GET", path)


def evict_pod(namespace: str, name: str, *, uid: str) -> Request:
    """This very pod's eviction, refused with `DisruptionRefused` while a budget forbids it, and
    with `WriteConflict` when another pod has its name by now.
    """
    body: JsonObject = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    path = _path("pods", name, "eviction", namespace=namespace)
    return Request(f"the eviction of {namespace}/{name}", "POST", path, body=body)


def delete_pod(namespace: str, name: str, *, uid: str) -> Request:
    """The deletion of this very pod, and of none that came after it under its name."""
    body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    path = _path("pods", name, namespace=namespace)
    return Request(f"the deletion of {namespace}/{name}", "DELETE", path, body=body)


def create_event(body: JsonObject) -> Request:
    """A new Event, in its namespace."""
    path = _path("events", namespace=body["metadata"]["namespace"])
    return Request("a new Event", "POST", path, body=body)


def patch_event(name: str, body: JsonObject, namespace: str = EVENTS_IN) -> Request:
    """A merge patch of an Event that we made."""
    return _patch(f"a change of Event {name}", _path("events", name, namespace=namespace), body)


def get_runtime_class(name: str) -> Request:
    """One RuntimeClass."""
    path = _path("runtimeclasses", name, api="/apis/node.k8s.io/v1")
    return Request(f"the RuntimeClass {name}", "GET", path)


def get_version() -> Request:
    """The API server's release, which every account may read."""
    return Request("the API server's version", "GET", "/version")


def get_claim(namespace: str, name: str) -> Request:
    """The newest of one ResourceClaim."""
    path = _path("resourceclaims", name, namespace=namespace, api=_RESOURCES)
    return Request(f"the ResourceClaim {namespace}/{name}", "GET", path)


def apply_claim_devices(namespace: str, name: str, body: JsonObject) -> Request:
    """The agent's part of a ResourceClaim's `status.devices` becomes that of `body`, by server-side
    apply; with `metadata.uid` refused with `RequestRefused` when another claim has its name.
    """
    path = _path("resourceclaims", name, "status", namespace=namespace, api=_RESOURCES)
    return Request(
        f"a change of ResourceClaim {namespace}/{name}'s status",
        "PATCH",
        path,
        {"fieldManager": "nodeagent", "force": "true"},
        body,
        "application/apply-patch+yaml",
    )


def list_slices(node: str) -> Request:
    """The ResourceSlices of one node, of all drivers."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    purpose = f"the list of {node}'s ResourceSlices"
    return Request(purpose, "GET", _path(_SLICES, api=_RESOURCES), query)


def create_slice(body: JsonObject) -> Request:
    """A new ResourceSlice; the answer is what the server kept of it."""
    path = _path(_SLICES, api=_RESOURCES)
    return Request("a new ResourceSlice", "POST", path, body=body)


def replace_slice(name: str, body: JsonObject) -> Request:
    """The whole object; refused with `WriteConflict` when another version is there."""
    path = _path(_SLICES, name, api=_RESOURCES)
    return Request(f"a change of ResourceSlice {name}", "PUT", path, body=body)


def delete_slice(name: str) -> Request:
    """The deletion of one ResourceSlice."""
    path = _path(_SLICES, name, api=_RESOURCES)
    return Request(f"the deletion of ResourceSlice {name}", "DELETE", path)


def review_access(right: Right) -> Request:
    """Whether roles give us this right. Admission policies are not asked, and may say no."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    body: JsonObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = _path("selfsubjectaccessreviews", api="/apis/authorization.k8s.io/v1")
    return Request("a question about our rights", "POST", path, body=body)


class _ReviewStatus(Struct):
    allowed: bool


class _Review(Struct):
    status: _ReviewStatus


read_review: Final = Decoder(_Review).decode
"""The answer to `review_access`."""


def _path(plural: str, *below: str, namespace: str = "", api: str = "/api/v1") -> str:
    """The path of all objects of a kind, or of one and its subresource (`below`), escaped."""
    parts = (*(("namespaces", namespace) if namespace else ()), plural, *below)
    return "/".join((api, *(quote(part, safe="") for part in parts)))


def _patch(
    purpose: str, path: str, body: JsonObject, *, kind: str = "merge", dry_run: bool = False
) -> Request:
    query = {"dryRun": "All"} if dry_run else {}
    return Request(purpose, "PATCH", path, query, body, f"application/{kind}-patch+json")
