"""The gRPC service that sends the health of devices to the kubelet (KEP-4680)."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio

from nodeagent.claims.device_health import DeviceHealth
from nodeagent.cluster.kubelet.generated import dra_health_pb2 as messages
from nodeagent.cluster.kubelet.plugin.device_health import HealthFeed

SERVICE: Final = "v1alpha1.DRAResourceHealth"  # also its name among the supported versions
LONGEST_MESSAGE: Final = 1024  # bytes; the kubelet would cut it inside a letter
_CUT: Final = "..."


def health_stream(feed: HealthFeed) -> grpc.GenericRpcHandler:
    """Serves NodeWatchResources; each stream lasts until the kubelet or the server ends it."""

    async def watch(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async with aclosing(feed.watch()) as lists:
            async for devices in lists:
                message = messages.NodeWatchResourcesResponse(devices=map(_encoded, devices))
                await context.write(message.SerializeToString())

    methods: dict[str, Any] = {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(watch)}
    return grpc.method_handlers_generic_handler(SERVICE, methods)


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
