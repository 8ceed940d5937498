"""The shipped overlays and policies at a real API server: applied by kubectl, and judged there with
tokens that are bound to a Node.

Runs where KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.manifests import rendering
from tests.manifests.node_changes import ALLOWED, BARE, DENIED, Change
from tests.manifests.rendering import MANIFESTS, OVERLAYS, with_components
from tests.simulated_cluster.patching import MERGE
from tests.simulated_cluster.real_api_server import RealApiServer, why_not

_WHY_NOT = why_not() or rendering.why_not()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
NODES = "/api/v1/nodes"
EVERYTHING = ("dra", "evictions", "plugin-pod-deletion")  # components with policies


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    """A server of these tests' own."""
    with RealApiServer(tmp_path_factory.mktemp("policies")).running() as server:
        yield server


def _kubectl(server: RealApiServer, *arguments: str) -> None:
    access = (f"--server={server.url}", f"--token={server.token}", "--insecure-skip-tls-verify")
    done = subprocess.run(
        ["kubectl", "--kubeconfig=/dev/null", *access, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
        token = self._server.token if agent_of is None else await self._token(agent_of)
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
        """Create a Node of this name."""
        await self.made(NODES, {**like, "metadata": {**like["metadata"], "name": name}})
        status, text = await self.ask("PATCH", f"{NODES}/{name}/status", {"status": like["status"]})
        assert status == 200, text

    async def _token(self, node: str) -> str:
        if node not in self._tokens:
            bound = {"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": node}}
            path = "/api/v1/namespaces/nodeagent/serviceaccounts/nodeagent/token"
            made = await self.made(path, {"spec": {"audiences": [], **(bound if node else {})}})
            self._tokens[node] = made["status"]["token"]
        return self._tokens[node]


@pytest.fixture
async def admin(server: RealApiServer, tmp_path: Path) -> AsyncIterator[Admin]:
    """With all that is shipped in force, and the Nodes gpu-0 and gpu-1."""
    with_components(tmp_path, "gpu-operator", EVERYTHING)
    _kubectl(server, "apply", "--server-side", "-k", str(tmp_path))
    async with aiohttp.ClientSession() as session:
        admin = Admin(server, session)
        for name in ("gpu-0", "gpu-1"):
            await admin.node(name)
        async with asyncio.timeout(30):  # a new policy takes its time
            while (await admin.ask("PATCH", f"{NODES}/gpu-0", {}, agent_of="gpu-1"))[0] != 403:
                await asyncio.sleep(0.2)
        yield admin


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_overlay_is_applied(server: RealApiServer, tmp_path: Path, name: str) -> None:
    """All that it has is accepted."""
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: nebuly-nvidia}\n"
    (tmp_path / "nos.yaml").write_text(namespace)  # which nos brings along
    _kubectl(server, "apply", "--server-side", "-f", str(tmp_path / "nos.yaml"))
    _kubectl(server, "apply", "--server-side", "-k", str(MANIFESTS / "overlays" / name))


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
