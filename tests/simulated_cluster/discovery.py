"""What the API server publishes about itself: enough for kubectl and for a client's probes."""

from typing import Any

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]


def _resource(plural: str, kind: str, *, namespaced: bool, verbs: list[str]) -> dict[str, Any]:
    return {
        "name": plural,
        "singularName": "" if "/" in plural else kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "verbs": verbs,
    }


_RESOURCE_V1 = {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
_RESOURCE_GROUP = {
    "name": "resource.k8s.io",
    "versions": [_RESOURCE_V1],
    "preferredVersion": _RESOURCE_V1,
}

DISCOVERY: dict[str, Any] = {
    "/version": {
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0-test",
        "platform": "linux/amd64",
    },
    "/readyz": "ok",
    "/healthz": "ok",
    "/livez": "ok",
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_RESOURCE_GROUP]},
    "/apis/resource.k8s.io/v1": {
        "kind": "APIResourceList",
        "groupVersion": "resource.k8s.io/v1",
        "resources": [
            _resource(
                "resourceslices",
                "ResourceSlice",
                namespaced=False,
                verbs=["create", "delete", "get", "list", "update", "watch"],
            ),
            _resource("resourceclaims", "ResourceClaim", namespaced=True, verbs=_VERBS),
        ],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("nodes", "Node", namespaced=False, verbs=_VERBS),
            _resource("nodes/status", "Node", namespaced=False, verbs=["get", "patch"]),
            _resource("pods", "Pod", namespaced=True, verbs=_VERBS),
            _resource("pods/status", "Pod", namespaced=True, verbs=["get", "patch"]),
            _resource("pods/eviction", "Eviction", namespaced=True, verbs=["create"]),
            _resource("events", "Event", namespaced=True, verbs=_VERBS),
        ],
    },
}
