"""What the agent asks of the API server is what its rights allow, no less and no more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.client.faults import ClusterFault
from tests.manifests.rendering import Document, written
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

BASE = "base/rights.yaml"
NOS = "overlays/nos/rights.yaml"
NOS_MAP = ("nebuly-nvidia", "nos-device-plugin-configs")
EVICTIONS = "components/evictions/rights.yaml"
DELETION = "components/plugin-pod-deletion/rights.yaml"

Right = tuple[str, str, str]  # namespace ("" for all), resource, verb
# Everything that can be asked, with where the right to it is given.
CALLS = {
    "list_node": BASE,
    "watch_node": BASE,
    "patch_node": BASE,
    "patch_node_status": BASE,
    "create_event": BASE,
    "patch_event": BASE,
    "list_pods": BASE,
    "pod": BASE,
    "config_map": NOS,
    "evict_pod": EVICTIONS,
    "delete_pod": DELETION,
}
# `nodeagent check` tries the changes that the agent makes, and asks for what an administrator's
# account may see; what it may, and which version the server has, any account may ask.
OTHERWISE = {"try_changing_node", "may", "probe", "has_runtime_class"}
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


def _rights(documents: Iterable[Document]) -> Iterator[Right]:
    """Those that the roles give, in the namespaces where they are bound."""
    for role in documents:
        if role["kind"] in {"Role", "ClusterRole"}:
            for rule in role["rules"]:
                assert rule["apiGroups"] == [""]
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield role["metadata"].get("namespace", ""), resource, verb


def _needed(request: Request) -> Right:
    found = re.fullmatch(
        r"/api/v1(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?", request.path
    )
    assert found, request.path
    namespace, resource, name, below = found.groups()
    verb = VERBS[request.method]
    if verb == "get" and name is None:
        verb = "watch" if request.watch else "list"
    return namespace or "", f"{resource}/{below}" if below else resource, verb


@pytest.fixture
def credentials(tmp_path: Path, api: ApiServer) -> Kubeconfig:
    """A kubeconfig for the test's server."""
    content = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": api.url}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return Kubeconfig(path)


async def _ask(access: ClusterAccess, call: str) -> None:
    """One call of each method; what is answered does not matter here."""
    method = getattr(access, call)
    match call:
        case "list_node" | "list_pods":
            await method("gpu-0")
        case "watch_node":
            async with method("gpu-0", version="0", seconds=1):
                pass
        case "patch_node" | "patch_node_status" | "patch_event":
            await method("gpu-0", {})
        case "create_event":
            await method({"metadata": {"name": "x", "namespace": "default"}})
        case "config_map":
            await method(*NOS_MAP)
        case "pod":
            await method("team-a", "x")
        case "evict_pod" | "delete_pod":
            await method("team-a", "x", uid="1")
        case _:
            raise AssertionError(f"{call} is new: it needs a line in CALLS, and a right")


async def test_each_right_is_used_and_each_use_has_a_right(
    api: ApiServer, credentials: Kubeconfig
) -> None:
    """Every request that the client can make is allowed by the role it is listed with, and no
    role allows anything else.
    """
    needed: dict[str, set[Right]] = {}
    async with ClusterAccess(credentials) as access:
        calls = {name for name in dir(ClusterAccess) if not name.startswith("_")} - {
            "server",
            *OTHERWISE,
        }
        for call in sorted(calls):
            api.requests.clear()
            try:
                await _ask(access, call)
            except ClusterFault:
                assert api.requests, (
                    call
                )  # what the server does not have was asked for all the same
            (request,) = api.requests
            namespace, resource, verb = _needed(request)
            everywhere = resource.startswith(("nodes", "pods"))
            right = ("" if everywhere else namespace, resource, verb)
            needed.setdefault(CALLS[call], set()).add(right)
    for path in (BASE, NOS, EVICTIONS, DELETION):
        assert sorted(_rights(written(path))) == sorted(needed[path]), path


def test_only_nos_own_config_map_can_be_read() -> None:
    """The right to read ConfigMaps is for the one that the overlay's settings name."""
    (rule,) = written(NOS)[0]["rules"]
    assert rule["resourceNames"] == [NOS_MAP[1]]
    settings = yaml.safe_load(
        (Path(__file__).parents[2] / "manifests/overlays/nos/settings.yaml").read_text()
    )
    assert settings["kubernetes"]["nos_config_map"] == "/".join(NOS_MAP)
