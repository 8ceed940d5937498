"""What the agent asks of the API server is what its rights allow, no less and no more."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.requests import Request
from tests.manifests.rendering import Document, written

BASE = "base/rights.yaml"
EVICTIONS = "components/evictions/rights.yaml"
DELETION = "components/plugin-pod-deletion/rights.yaml"
DRA = "components/dra/rights.yaml"


def _watch(listed: Request) -> Request:
    return requests.watch(listed, version="0", seconds=1)


Right = tuple[str, str, str]  # namespace ("" for all), resource, verb
# Everything that can be asked, with where the right to it is given.
REQUESTS: dict[str, tuple[str, Callable[[], Request]]] = {
    "list_node": (BASE, lambda: requests.list_node("gpu-0")),
    "watch": (BASE, lambda: _watch(requests.list_node("gpu-0"))),
    "patch_node": (BASE, lambda: requests.patch_node("gpu-0", {})),
    "patch_node_status": (BASE, lambda: requests.patch_node_status("gpu-0", {})),
    "create_event": (BASE, lambda: requests.create_event({"metadata": {"namespace": "default"}})),
    "patch_event": (BASE, lambda: requests.patch_event("x", {})),
    "list_pods": (BASE, lambda: requests.list_pods("gpu-0")),
    "get_pod": (DRA, lambda: requests.get_pod("team-a", "x")),
    "evict_pod": (EVICTIONS, lambda: requests.evict_pod("team-a", "x", uid="1")),
    "apply_claim_devices": (DRA, lambda: requests.apply_claim_devices("team-a", "x", {})),
    "get_claim": (DRA, lambda: requests.get_claim("team-a", "x")),
    "list_slices": (DRA, lambda: requests.list_slices("gpu-0")),
    "create_slice": (DRA, lambda: requests.create_slice({})),
    "replace_slice": (DRA, lambda: requests.replace_slice("x", {})),
    "delete_slice": (DRA, lambda: requests.delete_slice("x")),
    "delete_pod": (DELETION, lambda: requests.delete_pod("team-a", "x", uid="1")),
}
# What is asked with a right for more than the first: Events about claims are in their namespaces.
ALSO: tuple[tuple[str, Callable[[], Request]], ...] = (
    (DRA, lambda: requests.create_event({"metadata": {"namespace": "team-a"}})),
    (DRA, lambda: requests.patch_event("x", {}, "team-a")),
    (DRA, lambda: _watch(requests.list_slices("gpu-0"))),
)
# `nodeagent check` asks for what an administrator's account may see; what it may, any account may
# ask.
OTHERWISE = {"review_access", "get_runtime_class", "get_version"}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _rights(documents: Iterable[Document]) -> Iterator[Right]:
    """Those that the roles give, in the namespaces where they are bound."""
    for role in documents:
        if role["kind"] in {"Role", "ClusterRole"}:
            for rule in role["rules"]:
                assert rule["apiGroups"] in ([""], ["resource.k8s.io"])
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield role["metadata"].get("namespace", ""), resource, verb


def _needed(request: Request) -> Right:
    found = re.fullmatch(
        r"/(?:api|apis/resource\.k8s\.io)/v1(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?",
        request.path,
    )
    assert found, request.path
    namespace, resource, name, below = found.groups()
    verb = VERBS[request.method]
    if verb == "get" and name is None:
        verb = "watch" if "watch" in request.query else "list"
    return namespace or "", f"{resource}/{below}" if below else resource, verb


def test_each_right_is_used_and_each_use_has_a_right() -> None:
    """Every request that the client can make is allowed by its role, and nothing else is."""
    functions = {
        name
        for name, made in inspect.getmembers(requests, inspect.isfunction)
        if made.__module__ == requests.__name__ and not name.startswith("_")
    }
    assert functions == {*REQUESTS, *OTHERWISE}, "a new request needs a line here, and a right"
    needed: dict[str, set[Right]] = {}
    for role, make in (*REQUESTS.values(), *ALSO):
        namespace, resource, verb = _needed(make())
        everywhere = role == DRA or resource.startswith(("nodes", "pods"))
        needed.setdefault(role, set()).add(("" if everywhere else namespace, resource, verb))
    # Who may patch a claim's status has to be let write of this driver's devices there, too.
    needed[DRA].add(("", "resourceclaims/driver", "associated-node:patch"))
    for path in (BASE, EVICTIONS, DELETION, DRA):
        assert sorted(_rights(written(path))) == sorted(needed[path]), path
