"""The gRPC service with which the kubelet gets to know the DRA driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from nodeagent.claims.names import DRIVER
from nodeagent.cluster.kubelet.generated import pluginregistration_pb2 as messages
from nodeagent.cluster.kubelet.plugin import health_stream, server

log = structlog.get_logger(__name__)

SERVICE: Final = "pluginregistration.Registration"
VERSIONS: Final = (server.VERSION, *health_stream.SERVICES)  # a kubelet takes the first it knows
_LONGEST_REASON: Final = 1000  # characters

_Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Registration:
    """What the kubelet has said of the driver last; `reason` has its words when it refused it."""

    state: Literal["not yet seen", "registered", "refused"] = "not yet seen"
    reason: str = ""


class RegistrationService:
    """Answers the kubelet, and keeps what it said; `endpoint` is the DRA service's socket.
    `on_change` gets what it said when that is something else than before.
    """

    def __init__(
        self, endpoint: Path, on_change: Callable[[Registration], None] = lambda _: None
    ) -> None:
        self.status = Registration()
        self._on_change = on_change
        info = messages.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=VERSIONS
        )
        self._info = info.SerializeToString()

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(self._notify),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _get_info(self, _: bytes, context: _Context) -> bytes:
        return self._info

    async def _notify(self, request: bytes, context: _Context) -> bytes:
        try:
            status = messages.RegistrationStatus.FromString(request)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unreadable: {error}")
        before = self.status
        if status.plugin_registered:
            self.status = Registration("registered")
            log.info("the kubelet registered the DRA driver")
        else:
            self.status = refused = Registration("refused", status.error[:_LONGEST_REASON])
            if refused != before:  # the kubelet tries again and again
                log.error("the kubelet refused the DRA driver", reason=refused.reason)
        if self.status != before:
            self._on_change(self.status)
        return messages.RegistrationStatusResponse().SerializeToString()
