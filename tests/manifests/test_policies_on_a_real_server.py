"""The shipped overlays and policies at a real API server: applied by kubectl, and judged there with
tokens that are bound to a Node.

Runs where KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.guard import is_guarded
from tests.machine_load import stretched
from tests.manifests import rendering
from tests.manifests.node_changes import ALLOWED, BARE, DENIED, Change
from tests.manifests.rendering import MANIFESTS, OVERLAYS, with_components
from tests.manifests.test_rendering import TOGETHER
from tests.simulated_cluster.claim_status import APPLY
from tests.simulated_cluster.patching import MERGE
from tests.simulated_cluster.real_api_server import RealApiServer, why_not

_WHY_NOT = why_not() or rendering.why_not()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/{}/pods"
EVENTS = "/api/v1/namespaces/{}/events"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture(scope="module")
def server(real_server: RealApiServer | None) -> RealApiServer:
    assert real_server
    return real_server


class Admin:
    """Requests as the tests' administrator, or with an agent's token."""

    def __init__(self, server: RealApiServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        self._tokens: dict[str, str] = {}

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        agent_of: str | None = None,
        content_type: str = MERGE,
    ) -> tuple[int, str]:
        """Status and text of the answer. `agent_of`: as the agent whose token names this Node."""
        token = self._server.token if agent_of is None else await self.token(agent_of)
        headers = {"Authorization": f"Bearer {token}"}
        if method == "PATCH":
            headers["Content-Type"] = content_type
        url = self._server.url + path
        async with self._session.request(
            method, url, json=body, headers=headers, ssl=False
        ) as answer:
            return answer.status, await answer.text()

    async def made(self, path: str, body: Any) -> Any:
        """What the administrator creates there; it may be there already."""
        status, text = await self.ask("POST", path, body)
        assert status in {201, 409}, text
        return yaml.safe_load(text)

    async def node(self, name: str, like: dict[str, Any] = BARE) -> None:
        await self.made(NODES, {**like, "metadata": {**like["metadata"], "name": name}})
        status, text = await self.ask("PATCH", f"{NODES}/{name}/status", {"status": like["status"]})
        assert status == 200, text

    async def may(self, method: str, path: str, body: Any = None, **more: Any) -> str:
        """What the policies say to the agent of gpu-0; "" where they let it through."""
        status, text = await self.ask(method, path, body, agent_of="gpu-0", **more)
        assert status in {200, 201, 403}, text
        return text if status == 403 else ""

    async def pod(
        self, name: str, node: str, *, owned: bool = True, namespace: str = "default"
    ) -> str:
        """The path of a pod that is made there, of a DaemonSet or alone."""
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "1"}
        owners = [{**owner, "controller": True}] if owned else []
        spec = {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": name, "ownerReferences": owners}
        await self.made(PODS.format(namespace), {"metadata": metadata, "spec": spec})
        return f"{PODS.format(namespace)}/{name}"

    async def token(self, node: str) -> str:
        """Bound to this Node, or to none."""
        if node not in self._tokens:
            bound = {"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": node}}
            path = "/api/v1/namespaces/nodeagent/serviceaccounts/nodeagent/token"
            made = await self.made(path, {"spec": {"audiences": [], **(bound if node else {})}})
            self._tokens[node] = made["status"]["token"]
        return self._tokens[node]


@pytest.fixture(scope="module")
def guarded(server: RealApiServer, tmp_path_factory: pytest.TempPathFactory) -> RealApiServer:
    """With all that is shipped in force, and the Nodes gpu-0 and gpu-1."""
    folder = tmp_path_factory.mktemp("all")
    with_components(folder, "gpu-operator", TOGETHER[0])  # all that have policies
    assert not server.kubectl("apply", "--server-side", "-k", str(folder))
    asyncio.run(_until_in_force(server))
    return server


async def _until_in_force(server: RealApiServer) -> None:
    """New policies take their time; the probe is of the last one."""
    async with aiohttp.ClientSession() as session:
        admin = Admin(server, session)
        for name in ("gpu-0", "gpu-1"):
            await admin.node(name)
        probe = f"{await admin.pod('probe', 'gpu-1')}?dryRun=All"
        async with asyncio.timeout(stretched(30)):
            while not await admin.may("DELETE", probe):
                await asyncio.sleep(0.2)


@pytest.fixture
async def admin(guarded: RealApiServer) -> AsyncIterator[Admin]:
    async with aiohttp.ClientSession() as session:
        yield Admin(guarded, session)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_overlay_is_applied(server: RealApiServer, name: str) -> None:
    assert not server.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "overlays" / name))
    if name == "dra":
        examples = str(MANIFESTS.parent / "examples/dra")
        assert not server.kubectl("create", "--dry-run=server", "-f", examples)


@pytest.mark.parametrize("components", TOGETHER, ids=lambda names: names[0])
def test_the_components_are_applied(
    server: RealApiServer, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """With an overlay of one's own."""
    with_components(tmp_path, "gpu-operator", components)
    assert not server.kubectl("apply", "--server-side", "-k", str(tmp_path))


async def test_every_change_is_judged_as_by_the_other_interpreter(admin: Admin) -> None:
    """Each change of the list is let through or denied with the same words."""
    wrong = []
    for number, change in enumerate((*ALLOWED, *DENIED)):
        name = f"node-{number}"
        await admin.node(name, change.before)
        status, text = await _try(admin, name, change)
        expected = 403 if change.denied else 200
        words = change.denied.replace("gpu-0", name)
        if status != expected or (change.denied and words not in text):
            wrong.append((change.name, status, text[:500]))
    assert wrong == []


async def _try(admin: Admin, name: str, change: Change) -> tuple[int, str]:
    """The agent's own Node is `name` where the list says gpu-0."""
    agent_of = name if change.node == "gpu-0" else change.node
    path = f"{NODES}/{name}/status" if change.status else f"{NODES}/{name}"
    return await admin.ask("PATCH", path, change.patch, agent_of=agent_of)


@pytest.mark.parametrize("limited", [True, False])
async def test_it_is_found_out_whether_the_account_is_limited(
    admin: Admin, server: RealApiServer, tmp_path: Path, limited: bool
) -> None:
    """The agent's is, an administrator's is not; trying it changes nothing."""
    token = await admin.token("gpu-0") if limited else server.token
    cluster = {"server": server.url, "insecure-skip-tls-verify": True}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    async with ClusterAccess(Kubeconfig(tmp_path / "kubeconfig")) as access:
        assert await is_guarded(access, "gpu-0") == limited
    assert "guard.nodeagent.io" not in (await admin.ask("GET", f"{NODES}/gpu-0"))[1]


async def test_every_other_policy_is_in_force(admin: Admin) -> None:
    """One request that each lets through and one that it denies; test_policies has all cases."""

    def event(node: str) -> dict[str, Any]:
        about = {"kind": "Node", "name": node}
        return {"metadata": {"generateName": "e-"}, "involvedObject": about}

    events = EVENTS.format("default")
    assert not await admin.may("POST", events, event("gpu-0"))
    assert "Events about it alone" in await admin.may("POST", events, event("gpu-1"))

    def slice_of(node: str) -> dict[str, Any]:
        pool = {"name": f"{node}/gpu-0", "generation": 1, "resourceSliceCount": 1}
        spec = {"nodeName": node, "driver": "gpu.nodeagent.io", "pool": pool, "devices": []}
        return {"metadata": {"name": f"slice-{node}"}, "spec": spec}

    assert not await admin.may("POST", SLICES, slice_of("gpu-0"))
    theirs = await admin.made(SLICES, slice_of("gpu-1"))
    path = f"{SLICES}/{theirs['metadata']['name']}"
    assert "of its own Node alone" in await admin.may("PUT", path, theirs)
    assert "of its own Node alone" in await admin.may("DELETE", path)

    assert not await admin.may("DELETE", await admin.pod("plugin", "gpu-0"))
    alone = await admin.pod("alone", "gpu-0", owned=False)
    assert "but a DaemonSet's" in await admin.may("DELETE", alone)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "alone"}}
    assert not await admin.may("POST", f"{alone}/eviction", eviction)
    proxy = await admin.pod("proxy", "gpu-0", namespace="kube-system")
    eviction["metadata"] = {"name": "proxy"}
    denied = await admin.may("POST", f"{proxy}/eviction", eviction)
    assert "no agent evicts pods of kube-system" in denied


async def test_claims(admin: Admin) -> None:
    """The status of the own devices; the API server itself denies or ignores the rest."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "mig.nodeagent.io"}}
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    await admin.made(CLAIMS, body)
    results = [
        {"request": "gpu", "driver": "gpu.nodeagent.io", "pool": f"{node}/gpu-1", "device": "d"}
        for node in ("gpu-0", "gpu-1")
    ]
    field = {"key": "metadata.name", "operator": "In", "values": ["gpu-0"]}
    node = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    patch = {"status": {"allocation": {"devices": {"results": results}, "nodeSelector": node}}}
    status, text = await admin.ask("PATCH", f"{CLAIMS}/c/status", patch)
    assert status == 200, text

    async def apply(*devices: dict[str, str]) -> str:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "status": {"devices": [*devices]},
        }
        path = f"{CLAIMS}/c/status?fieldManager=nodeagent&force=true"
        return await admin.may("PATCH", path, body, content_type=APPLY)

    own, theirs = ({key: one[key] for key in ("driver", "pool", "device")} for one in results)
    assert not await apply(own)
    assert "of its own devices alone" in await apply(own, theirs)
