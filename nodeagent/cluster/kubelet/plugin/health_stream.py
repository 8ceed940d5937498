"""The gRPC services that send the health of devices to the kubelet (KEP-4680).

Its versions differ in the package's name alone. Kubelets up to 1.36 ask for v1alpha1; 1.37 asks for
v1, or for v1alpha1 where a driver has no other (kubernetes/kubernetes#139477, which left v1beta1
out).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio

from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.cluster.kubelet.generated import dra_health_pb2 as messages
from nodeagent.cluster.kubelet.plugin.device_health import HealthFeed

SERVICES: Final = (  # also their names among the supported versions
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
LONGEST_MESSAGE: Final = 1024  # bytes; the kubelet would cut it inside a letter
_CUT: Final = "..."


def health_streams(feed: HealthFeed) -> list[grpc.GenericRpcHandler]:
    """Serve NodeWatchResources; each stream lasts until the kubelet or the server ends it."""

    async def watch(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async with aclosing(feed.watch()) as lists:
            async for devices in lists:
                message = messages.NodeWatchResourcesResponse(devices=map(_encoded, devices))
                await context.write(message.SerializeToString())

    methods: dict[str, Any] = {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(watch)}
    return [grpc.method_handlers_generic_handler(service, methods) for service in SERVICES]


def _encoded(device: DeviceHealth) -> messages.DeviceHealth:
    return messages.DeviceHealth(
        device=messages.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=device.health.upper(),
        last_updated_time=int(device.at),
        message=_shortened(device.message),
    )


def _shortened(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) > LONGEST_MESSAGE:
        encoded = encoded[: LONGEST_MESSAGE - len(_CUT)] + _CUT.encode()
    return encoded.decode(errors="ignore")
