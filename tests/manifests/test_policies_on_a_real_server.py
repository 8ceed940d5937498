"""The same changes as in test_node_policy, judged by a real API server with the shipped rights.

Runs where KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.manifests.admission import AGENT
from tests.manifests.node_changes import ALLOWED, BARE, DENIED, Change
from tests.manifests.rendering import written
from tests.simulated_cluster.patching import MERGE
from tests.simulated_cluster.real_api_server import RealApiServer, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
IN_FORCE = 30.0  # seconds that a new policy may take to be in force
NODES = "/api/v1/nodes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    """A server of these tests' own."""
    with RealApiServer(tmp_path_factory.mktemp("policies")).running() as server:
        yield server


class Admin:
    """Requests as the tests' administrator, or in an agent's name."""

    def __init__(self, server: RealApiServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def ask(
        self, method: str, path: str, body: Any = None, *, agent_of: str | None = None
    ) -> tuple[int, str]:
        """Status and text of the answer. `agent_of`: as the agent whose token names this Node."""
        headers = {"Authorization": f"Bearer {self._server.token}"}
        if method == "PATCH":
            headers["Content-Type"] = MERGE
        if agent_of is not None:
            headers["Impersonate-User"] = AGENT
            if agent_of:
                key = "Impersonate-Extra-Authentication.kubernetes.io%2Fnode-Name"
                headers[key] = agent_of
        url = self._server.url + path
        async with self._session.request(
            method, url, json=body, headers=headers, ssl=False
        ) as answer:
            return answer.status, await answer.text()

    async def have(self, kind: str, document: Any) -> None:
        """Create it, unless it is there."""
        status, text = await self.ask("POST", PATHS[kind], document)
        assert status in {201, 409}, text

    async def node(self, name: str, like: dict[str, Any]) -> None:
        """Create a Node of this name."""
        document = {**like, "metadata": {**like["metadata"], "name": name}}
        status, text = await self.ask("POST", NODES, document)
        assert status == 201, text
        status, text = await self.ask("PATCH", f"{NODES}/{name}/status", {"status": like["status"]})
        assert status == 200, text


@pytest.fixture
async def admin(server: RealApiServer) -> AsyncIterator[Admin]:
    """With the agent's rights and the policy in force."""
    async with aiohttp.ClientSession() as session:
        admin = Admin(server, session)
        for path in ("base/rights.yaml", "base/node-policy.yaml"):
            for document in written(path):
                if document["kind"] in PATHS:
                    await admin.have(document["kind"], document)
        await admin.ask("POST", NODES, {**BARE, "metadata": {"name": "probe"}})
        async with asyncio.timeout(IN_FORCE):
            while (await admin.ask("PATCH", f"{NODES}/probe", {}, agent_of="other"))[0] != 403:
                await asyncio.sleep(0.2)
        yield admin


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
