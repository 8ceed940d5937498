"""A DRA plugin without the agent's code, that the tests' kubelet is tried with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nodeagent.cluster.kubelet.generated.dra_health_pb2 import (
    HEALTHY,
    DeviceHealth,
    DeviceIdentifier,
    NodeWatchResourcesResponse,
)
from nodeagent.cluster.kubelet.generated.dra_pb2 import (
    Device,
    NodePrepareResourceResponse,
    NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse,
    NodeUnprepareResourcesResponse,
)
from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import (
    PluginInfo,
    RegistrationStatus,
)
from tests.simulated_cluster.kubelet_claims import Claim

DRIVER = "dra.example.com"
ONE, TWO = (Claim(f"claim-{uid}", uid, drivers=(DRIVER,)) for uid in ("a", "b"))


@dataclass
class Plugin:
    """A plugin on two sockets below `root`, which answers as the test says.

    `notified` has what the kubelet notified; `prepared` and `released` are the answers.
    """

    root: Path
    kind: str = "DRAPlugin"
    endpoint: str = ""
    versions: tuple[str, ...] = ("v9.DRAPlugin", "v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
    notified: list[RegistrationStatus] = field(default_factory=list)
    prepared: dict[str, NodePrepareResourceResponse] = field(default_factory=dict)
    released: dict[str, NodeUnprepareResourceResponse] = field(default_factory=dict)
    watched: list[str] = field(default_factory=list)
    release_now: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.release_now.set()
        self.endpoint = self.endpoint or str(self.root / "plugins" / "dra.sock")
        device = Device(pool_name="p", device_name="d", cdi_device_ids=["k/c=d"])
        for claim in (ONE, TWO):
            self.prepared[claim.uid] = NodePrepareResourceResponse(devices=[device])
            self.released[claim.uid] = NodeUnprepareResourceResponse()

    async def get_info(self, _: bytes, __: Any) -> bytes:
        info = PluginInfo(
            type=self.kind,
            name=DRIVER,
            endpoint=self.endpoint,
            supported_versions=self.versions,
        )
        return info.SerializeToString()

    async def notify(self, request: bytes, _: Any) -> bytes:
        self.notified.append(RegistrationStatus.FromString(request))
        return b""

    async def prepare(self, _: bytes, __: Any) -> bytes:
        return NodePrepareResourcesResponse(claims=self.prepared).SerializeToString()

    async def release(self, _: bytes, __: Any) -> bytes:
        await self.release_now.wait()
        return NodeUnprepareResourcesResponse(claims=self.released).SerializeToString()

    async def watch(self, _: bytes, context: Any) -> None:
        self.watched.append("v1alpha1")
        device = DeviceIdentifier(pool_name="p", device_name="d")
        health = DeviceHealth(device=device, health=HEALTHY)
        await context.write(NodeWatchResourcesResponse(devices=[health]).SerializeToString())
        await asyncio.Event().wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        dra: dict[str, Any] = {
            "NodePrepareResources": unary(self.prepare),
            "NodeUnprepareResources": unary(self.release),
        }
        registration: dict[str, Any] = {
            "GetInfo": unary(self.get_info),
            "NotifyRegistrationStatus": unary(self.notify),
        }
        health: dict[str, Any] = {"NodeWatchResources": stream(self.watch)}
        async with (
            serving(
                self.root / "plugins" / "dra.sock",
                {
                    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": dra,
                    "v1alpha1.DRAResourceHealth": health,
                },
            ),
            serving(
                self.root / "plugins_registry" / "reg.sock",
                {"pluginregistration.Registration": registration},
            ),
        ):
            yield


@asynccontextmanager
async def serving(path: Path, services: dict[str, dict[str, Any]]) -> AsyncIterator[None]:
    """Serve these handlers by service and method."""
    server = grpc.aio.server()
    handlers = [grpc.method_handlers_generic_handler(*service) for service in services.items()]
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        await server.stop(grace=None)
