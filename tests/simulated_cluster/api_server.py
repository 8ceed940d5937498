"""A small API server for tests and for trying out: Nodes, Pods and Events over real HTTP.

`async with ApiServer() as api` serves on a free port of 127.0.0.1. Its methods are the rest of
the cluster: they change objects as another client would, and every watch hears of it.
"""

import contextlib
import copy
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self

from aiohttp import web

from tests.simulated_cluster.access import Access
from tests.simulated_cluster.claim_status import ClaimStatusRules
from tests.simulated_cluster.faults import Faults
from tests.simulated_cluster.journal import Request
from tests.simulated_cluster.patching import MERGE, patched
from tests.simulated_cluster.pods import Pods
from tests.simulated_cluster.resource_slices import SliceRules
from tests.simulated_cluster.routes import application
from tests.simulated_cluster.store import Key, Object, Store


class ApiServer:
    """`requests` has everything that was asked, `events` every Event there is.

    `faults` orders what goes wrong, `tokens` says who may ask (empty: everyone),
    `access.own_node` which token may write to which Node only. `expire` is a compaction: versions
    before the present one are too old, and open watches go on. Every answer and every event of a
    watch comes `latency` seconds late, as over a network from a server with work to do. Without
    `progress` its etcd has no progress notifications, as before 3.4.31 and 3.5.13.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        bookmark_seconds: float = 60.0,
        history: int = 1000,
        port: int = 0,
        latency: float = 0.0,
        progress: bool = True,
    ) -> None:
        self.store = Store(history=history)
        self.faults = Faults()
        self.access = Access()
        self.pods = Pods(self.store)
        self.slices = SliceRules()
        self.claims = ClaimStatusRules()
        self.requests: list[Request] = []
        self.runtime_classes = {"nvidia"}
        self.bookmark_seconds = bookmark_seconds
        self.latency = latency
        self.progress = progress
        self.port = port  # 0 until the first start
        self.tokens, self.revoke = self.access.tokens, self.access.revoke
        self.evictions = self.pods.evictions
        self.expire = self.store.forget
        self._tls = tls
        self._runner: web.AppRunner | None = None

    # --- its life -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Open the port, the same one each time."""
        runner = web.AppRunner(
            application(self),
            access_log=None,
            handler_cancellation=True,  # a client that goes ends its watch at once
            shutdown_timeout=0.0,
        )
        await runner.setup()
        site = web.TCPSite(
            runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self.port = int(runner.addresses[0][1])
        self._runner = runner

    async def stop(self) -> None:
        """Close the port and break off all connections; the objects and the history stay."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if runner.server is not None:
            for connection in runner.server.connections:
                connection.force_close()
        await runner.cleanup()

    async def restart(self) -> None:
        """Stop and start with a fresh watch cache: every version given out so far is too old."""
        await self.stop()
        self.store.tick()  # in a real cluster some client always writes meanwhile
        self.store.forget()
        await self.start()

    @contextlib.asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        await self.stop()
        try:
            yield
        finally:
            await self.start()

    @contextlib.contextmanager
    def unsent(self) -> Iterator[None]:
        """What changes within the block is lost to the watches that are open."""
        watching, self.store.watching = self.store.watching, set()
        try:
            yield
        finally:
            self.store.watching = watching

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- nodes ----------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Object:
        """A Node joins; one of a name that was there before gets another uid."""
        metadata: Object = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return self.store.create(
            "nodes",
            "",
            {
                "metadata": metadata,
                "spec": {},
                "status": {"conditions": [ready], "allocatable": {}},
            },
        )

    def node(self, name: str) -> Object:
        """A copy of the Node; raises Refused (404)."""
        return self.store.get(Key("nodes", "", name))

    def patch_node(self, name: str, patch: Object) -> Object:
        """Another client's merge patch, spec and status alike; raises Refused."""
        return self._patch(Key("nodes", "", name), patch)

    def annotate(self, name: str, **annotations: str | None) -> Object:
        """Set (None: remove) annotations: `annotate("n", **{"nodeagent.io/plan": text})`."""
        return self.patch_node(name, {"metadata": {"annotations": annotations}})

    def delete_node(self, name: str) -> Object:
        return self.store.delete(Key("nodes", "", name))

    def heartbeat(self, name: str, at: str) -> Object:
        """The kubelet's regular write: the Ready condition's time of its last heartbeat."""
        conditions = copy.deepcopy(self.node(name)["status"]["conditions"])
        for condition in conditions:
            if condition["type"] == "Ready":
                condition["lastHeartbeatTime"] = at
        return self.patch_node(name, {"status": {"conditions": conditions}})

    # --- pods and events ------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        node: str = "",
        labels: Mapping[str, str] | None = None,
        phase: str = "Running",
        spec: Mapping[str, Any] | None = None,
        lingers: bool = False,
    ) -> Object:
        """A pod; one that `lingers` is only marked when deleted, until `pods.gone`."""
        metadata: Object = {"name": name}
        if labels:
            metadata["labels"] = dict(labels)
        if lingers:
            self.pods.lingering.add((namespace, name))
        containers = [{"name": "main", "image": "none"}]
        return self.store.create(
            "pods",
            namespace,
            {
                "metadata": metadata,
                "spec": {"nodeName": node, "containers": containers, **(spec or {})},
                "status": {"phase": phase},
            },
        )

    def pod(self, name: str, *, namespace: str = "default") -> Object:
        """A copy of the pod; raises Refused (404)."""
        return self.store.get(Key("pods", namespace, name))

    def patch_pod(self, name: str, patch: Object, *, namespace: str = "default") -> Object:
        """Another client's merge patch, spec and status alike; raises Refused."""
        return self._patch(Key("pods", namespace, name), patch)

    def delete_pod(self, name: str, *, namespace: str = "default") -> Object:
        return self.pods.delete(Key("pods", namespace, name))

    @property
    def events(self) -> list[Object]:
        """Copies of the Events, oldest first."""
        return sorted(self.store.all("events"), key=lambda event: str(event["metadata"]["uid"]))

    def drop_events(self) -> None:
        """Events live for an hour: all that there are have ended."""
        for event in self.events:
            metadata = event["metadata"]
            self.store.delete(Key("events", metadata["namespace"], metadata["name"]))

    def _patch(self, key: Key, patch: Object) -> Object:
        kind = "Node" if key.plural == "nodes" else "Pod"
        return self.store.change(key, lambda found: patched(kind, found, MERGE, patch))
