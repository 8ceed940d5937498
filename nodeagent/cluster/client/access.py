"""What the agent asks of the API server: one Node, Events about it, and the pods on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import aiohttp

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.connection import Connection, JsonObject, Request
from nodeagent.cluster.client.credentials import Credentials

_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_NODES = "/api/v1/nodes"
_PODS = "/api/v1/pods"
_POD = "/api/v1/namespaces/{namespace}/pods/{name}"
_CONFIG_MAP = "/api/v1/namespaces/{namespace}/configmaps/{name}"
_EVENTS = "/api/v1/namespaces/default/events"  # where Events about Nodes live
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Listed:
    """The Node as the server has it, None where it has none, and the version to watch from."""

    node: JsonObject | None
    version: str


@dataclass(frozen=True, slots=True)
class Right:
    """To do `verb` to a resource such as `pods/eviction`; "" is every namespace, or every name."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


class ClusterAccess:
    """One API server. Enter it as a context manager; nothing is read or sent before the first use.

    Every request raises a `ClusterFault` and nothing else. `answer_within` bounds a request, for
    a watch its beginning; `reread_every` is how old the credentials may get (both in seconds).
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        answer_within: float = 15.0,
        reread_every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection(
            credentials, answer_within=answer_within, reread_every=reread_every, clock=clock
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    @property
    def server(self) -> str:
        """The server's address for people."""
        return self._connection.server

    async def probe(self, *, within: float) -> None:
        """Ask for the server's version, which costs it nothing; raise if no answer comes.

        Any HTTP status will do, also 429 and 5xx: a server that is overloaded is alive, and to
        list and watch anew would only add to its load.
        """
        purpose = "a liveness probe"
        try:
            async with asyncio.timeout(within):
                await self._connection.json(Request(purpose, "GET", "/version"))
        except TimeoutError as error:
            raise faults.from_error(error, purpose=purpose, server=self.server) from error
        except faults.ClusterFault as fault:
            if fault.status is None:
                raise

    async def list_node(self, name: str) -> Listed:
        """Ask for the one Node of this name, and for the version of that answer."""
        purpose = f"the list of Node {name}"
        answer = await self._connection.json(Request(purpose, "GET", _NODES, query=_only(name)))
        items, metadata = answer.get("items"), answer.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not isinstance(items, list | None):
            raise faults.strange_answer(purpose, "it is not a list of Nodes")
        return Listed(items[0] if items else None, version)

    @asynccontextmanager
    async def watch_node(
        self, name: str, *, version: str, seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a watch on one Node from `version` on; the server ends it after `seconds`."""
        purpose, whole = f"a watch of Node {name}", max(1, round(seconds))
        query = {
            **_only(name),
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(whole),
        }
        response = await self._connection.answered(
            Request(purpose, "GET", _NODES, query=query, longer=whole)
        )
        try:
            if response.content_type != "application/json":
                raise faults.strange_answer(purpose, "it is not JSON")
            yield response
        finally:
            response.close()  # not released: what is left of a watch is never worth reading

    async def patch_node(self, name: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Send a merge patch; the Node as it is then comes back."""
        purpose, path = f"a change of Node {name}", f"{_NODES}/{{name}}"
        return await self._patch(purpose, path, name, body, _MERGE, dry_run=dry_run)

    async def patch_node_status(
        self, name: str, body: JsonObject, *, dry_run: bool = False
    ) -> JsonObject:
        """Send a strategic merge patch of the status, whose conditions are merged by type."""
        purpose, path = f"a change of Node {name}'s status", f"{_NODES}/{{name}}/status"
        return await self._patch(purpose, path, name, body, _STRATEGIC, dry_run=dry_run)

    async def try_changing_node(self, name: str) -> None:
        """Send patches that change nothing and are not kept: whether ours would be let through."""
        await self.patch_node(name, {}, dry_run=True)
        await self.patch_node_status(name, {}, dry_run=True)

    async def may(self, right: Right) -> bool:
        """Whether roles give us this right. Admission policies are not asked, and may say no."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
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
        purpose = "a question about our rights"
        answer = await self._connection.json(Request(purpose, "POST", _REVIEWS, body=body))
        status = answer.get("status")
        if not isinstance(status, dict):
            raise faults.strange_answer(purpose, "it is no review")
        return status.get("allowed") is True

    async def has_runtime_class(self, name: str) -> bool:
        """Whether the cluster has a RuntimeClass of this name."""
        path = "/apis/node.k8s.io/v1/runtimeclasses/{name}"
        return await self._get(f"the RuntimeClass {name}", path, name=name) is not None

    async def create_event(self, body: JsonObject) -> None:
        """Make an Event in the namespace of those about Nodes."""
        await self._connection.json(Request("a new Event", "POST", _EVENTS, body=body))

    async def patch_event(self, name: str, body: JsonObject) -> None:
        """Send a merge patch of an Event that we made."""
        path = f"{_EVENTS}/{{name}}"
        await self._patch(f"a change of Event {name}", path, name, body, _MERGE)

    async def list_pods(self, node: str) -> list[JsonObject]:
        """The pods that are bound to this node, in any namespace, finished ones too.

        From the server's cache, which may be a moment behind: to read the newest, many servers go
        through all the pods of the cluster.
        """
        purpose = f"the list of the pods on {node}"
        query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
        answer = await self._connection.json(Request(purpose, "GET", _PODS, query=query))
        items = answer.get("items")
        if not isinstance(items, list | None) or not all(isinstance(i, dict) for i in items or ()):
            raise faults.strange_answer(purpose, "it is not a list of pods")
        return items or []

    async def pod(self, namespace: str, name: str) -> JsonObject | None:
        """The newest of one pod; None when there is no such pod."""
        return await self._get(f"the pod {namespace}/{name}", _POD, namespace=namespace, name=name)

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Ask for this very pod's eviction; raises `DisruptionRefused` while a budget forbids it,
        and `WriteConflict` when another pod has its name by now.
        """
        body: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        purpose, names = (
            f"the eviction of {namespace}/{name}",
            {"namespace": namespace, "name": name},
        )
        await self._connection.json(Request(purpose, "POST", f"{_POD}/eviction", names, body=body))

    async def delete_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Delete this very pod, and none that came after it under its name."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
        }
        purpose, names = (
            f"the deletion of {namespace}/{name}",
            {"namespace": namespace, "name": name},
        )
        await self._connection.json(Request(purpose, "DELETE", _POD, names, body=body))

    async def config_map(self, namespace: str, name: str) -> dict[str, str] | None:
        """The texts in a ConfigMap by key; None when there is no such ConfigMap."""
        path, purpose = _CONFIG_MAP, f"the ConfigMap {namespace}/{name}"
        answer = await self._get(purpose, path, namespace=namespace, name=name)
        if answer is None:
            return None
        data = answer.get("data") or {}
        if not isinstance(data, dict) or not all(isinstance(text, str) for text in data.values()):
            raise faults.strange_answer(purpose, "it is no ConfigMap")
        return data

    async def _get(self, purpose: str, path: str, **names: str) -> JsonObject | None:
        """One object; None when there is none of this name."""
        try:
            return await self._connection.json(Request(purpose, "GET", path, names))
        except faults.ObjectMissing:
            return None

    async def _patch(
        self,
        purpose: str,
        path: str,
        name: str,
        body: JsonObject,
        content_type: str,
        *,
        dry_run: bool = False,
    ) -> JsonObject:
        query = {"dryRun": "All"} if dry_run else {}
        return await self._connection.json(
            Request(purpose, "PATCH", path, {"name": name}, query, body, content_type)
        )


def _only(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}
