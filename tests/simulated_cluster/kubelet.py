"""A kubelet's pod-resources service over a real Unix socket, for tests and for trying out.

It behaves as the real one where that differs from what one would expect: one entry for each
device, devices of a checkpoint after a restart, a socket that is made anew. Its answers can be held
back, refused or spoiled.
"""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import grpc
import grpc.aio

from nodeagent.cluster.kubelet.generated import podresources_pb2

SERVICE = "v1.PodResourcesLister"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error."""

    code: grpc.StatusCode
    details: str


RATE_LIMITED = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
UNKNOWN_METHOD = Refusal(grpc.StatusCode.UNIMPLEMENTED, "unknown method")


@dataclass(slots=True)
class _Container:
    devices: list[tuple[str, str]] = field(default_factory=list)  # resource, device id
    claims: list[tuple[str, str, str, str]] = field(default_factory=list)


class Kubelet:
    """`async with Kubelet(folder) as kubelet`; the socket is `kubelet.socket`.

    `calls` has the name of each call that arrived. `refuse` maps a method to the error that it
    answers with, `spoilt` to the bytes that it answers with; `hold()` keeps all answers back.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self.calls: list[str] = []
        self.refuse: dict[str, Refusal] = {}
        self.spoilt: dict[str, bytes] = {}
        self._pods: dict[tuple[str, str], dict[str, _Container]] = {}
        self._under_way = 0
        self._dying = False
        self._wake = asyncio.Event()
        self._wake.set()
        self._server: grpc.aio.Server | None = None

    # --- what there is --------------------------------------------------------------------------

    def run(self, pod: str, *, namespace: str = "default", container: str = "main") -> None:
        """A pod is there; it need not have a device."""
        self._container(namespace, pod, container)

    def allocate(
        self,
        pod: str,
        device_ids: Sequence[str],
        *,
        namespace: str = "default",
        container: str = "main",
        resource: str = "nvidia.com/gpu",
    ) -> None:
        """A pod got devices of a device plugin."""
        devices = self._container(namespace, pod, container).devices
        devices += [(resource, device) for device in device_ids]

    def claim(
        self,
        pod: str,
        device: str,
        *,
        name: str,
        namespace: str = "default",
        container: str = "main",
        driver: str = "gpu.nvidia.com",
        pool: str = "node-0",
    ) -> None:
        """A pod got a device through a resource claim called `name`."""
        self._container(namespace, pod, container).claims.append((name, driver, pool, device))

    def set_claims(
        self, pod: str, claims: Sequence[tuple[str, str, str, str]], *, namespace: str = "default"
    ) -> None:
        """These are the devices of claims that a pod has: name, driver, pool and device of each."""
        self._container(namespace, pod, "main").claims[:] = claims

    def finish(self, pod: str, *, namespace: str = "default") -> None:
        """A pod is gone. A pod that only finished stays listed by an older kubelet: leave it."""
        del self._pods[namespace, pod]

    def _container(self, namespace: str, pod: str, container: str) -> _Container:
        return self._pods.setdefault((namespace, pod), {}).setdefault(container, _Container())

    # --- its life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the socket, over what an earlier one left."""
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        handlers: dict[str, Any] = {"List": grpc.unary_unary_rpc_method_handler(self._answer)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        server.add_insecure_port("unix:" + quote(str(self.socket)))
        await server.start()
        self._server, self._dying = server, False

    async def stop(self, *, leave_socket: bool = False) -> None:
        """End; calls that wait for an answer fail. A killed kubelet leaves its socket's file."""
        server, self._server = self._server, None
        if server is not None:
            self._dying = True
            self._wake.set()
            while self._under_way:
                await asyncio.sleep(0.001)
            await server.stop(grace=None)
            del server
        gc.collect()  # gRPC's polling thread ends with its last object, and failed calls are cycles
        if leave_socket:
            self.socket.unlink(missing_ok=True)
            await _leave_a_dead_socket(self.socket)

    async def restart(self) -> None:
        """Another kubelet on the same path. It knows allocations from the checkpoint."""
        await self.stop()
        await self.start()

    def hold(self) -> None:
        """Take calls and do not answer them until `go_on`."""
        self._wake.clear()

    def go_on(self) -> None:
        self._wake.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- answers --------------------------------------------------------------------------------

    async def _answer(self, _: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        self.calls.append("List")
        self._under_way += 1
        # The stubs have a class where gRPC takes any function.
        context.add_done_callback(self._one_less)  # type: ignore[arg-type]
        await self._wake.wait()
        if self._dying:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if refusal := self.refuse.get("List"):
            await context.abort(refusal.code, refusal.details)
        return self.spoilt.get("List") or self._list().SerializeToString()

    def _one_less(self, _: object) -> None:
        self._under_way -= 1

    def _list(self) -> podresources_pb2.ListPodResourcesResponse:
        return podresources_pb2.ListPodResourcesResponse(
            pod_resources=[
                podresources_pb2.PodResources(
                    name=name,
                    namespace=namespace,
                    containers=[
                        _container(namespace, name, held) for name, held in containers.items()
                    ],
                )
                for (namespace, name), containers in self._pods.items()
            ]
        )


def _container(namespace: str, name: str, held: _Container) -> podresources_pb2.ContainerResources:
    return podresources_pb2.ContainerResources(
        name=name,
        devices=[
            podresources_pb2.ContainerDevices(resource_name=resource, device_ids=[device])
            for resource, device in held.devices
        ],
        dynamic_resources=[
            podresources_pb2.DynamicResource(
                claim_name=claim,
                claim_namespace=namespace,
                claim_resources=[
                    podresources_pb2.ClaimResource(
                        driver_name=driver, pool_name=pool, device_name=device
                    )
                ],
            )
            for claim, driver, pool, device in held.claims
        ],
    )


async def _leave_a_dead_socket(path: Path) -> None:
    """A socket's file that no process listens on any more."""
    server = await asyncio.start_unix_server(lambda *_: None, path)
    # Python 3.13 takes the file away on closing; so it is kept under a second name meanwhile.
    kept = path.with_name(path.name + ".kept")
    kept.hardlink_to(path)
    server.close()
    await server.wait_closed()
    kept.replace(path)
