"""The DRA driver towards the kubelet: its gRPC services, and the sockets in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from nodeagent.claims.model import ClaimedDevice
from nodeagent.claims.names import DRIVER, NVIDIA_DRIVER
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.cluster.kubelet.generated import dra_health_pb2, dra_pb2
from nodeagent.cluster.kubelet.generated import pluginregistration_pb2 as registration_pb2
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls, ClaimName, HealthFeed
from nodeagent.cluster.kubelet.plugin.sockets import check_path, remove_dead, serve
from nodeagent.errors import NodeagentError
from nodeagent.structs import Struct

log = structlog.get_logger(__name__)

MAX_MESSAGE: Final = 1024  # bytes; the kubelet would cut it inside a letter
_CUT: Final = "...; in full: nodeagent status --problems"
_MAX_REASON: Final = 1000  # characters

_DRA: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_REGISTRATION: Final = "pluginregistration.Registration"
# KEP-4680; the versions differ in the package's name alone. Kubelets up to 1.36 ask for v1alpha1;
# 1.37 asks for v1, or for v1alpha1 where a driver has no other (kubernetes/kubernetes#139477, which
# left v1beta1 out).
_HEALTH: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
VERSIONS: Final = ("v1.DRAPlugin", *_HEALTH)  # a kubelet takes the first it knows

_Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def dra_driver(
    kubelet_dir: Path,
    claims: ClaimCalls,
    health: HealthFeed,
    on_registration: Callable[[Registration], None] = lambda _: None,
    *,
    name: str = DRIVER,
) -> AsyncIterator[RegistrationService]:
    """Serve the kubelet as the DRA driver `name`; what it said of that is in what this gives.

    The kubelet finds the driver by its registration socket, so the DRA service is there before it
    and after it. That socket has another name in each life of the agent: on a name that was
    not served the kubelet waits up to two minutes before it looks again. `kubelet_dir` is the
    kubelet's root directory, at the same path as for the kubelet. `on_registration` gets each
    answer of the kubelet that is another. `claims` is closed in the end. Raises PathRefused.
    """
    endpoint = kubelet_dir / "plugins" / name / "dra.sock"
    registry = kubelet_dir / "plugins_registry"
    socket = registry / f"{name}-{token_hex(4)}-reg.sock"
    for path in (endpoint, socket):
        check_path(path)
    services = [DraService(claims).handler(), *health_streams(health)]
    registration = RegistrationService(endpoint, on_registration, name=name)
    try:
        async with serve(endpoint, services, own_directory=True):
            for own in (DRIVER, NVIDIA_DRIVER):  # an earlier agent's, maybe under its other name
                await asyncio.to_thread(remove_dead, registry, f"{own}-????????-reg.sock")
            async with serve(socket, [registration.handler()]):
                yield registration
    finally:
        await claims.close()


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _service(name: str, **methods: tuple[type[Message], Any]) -> grpc.GenericRpcHandler:
    """A gRPC service; `methods` give the type of each request, and what answers it."""
    handlers: dict[str, Any] = {
        method: grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=_serialized
        )
        for method, (request, answer) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


class Registration(Struct, frozen=True):
    """What the kubelet has said of the driver last; `reason` has its words when it refused it."""

    state: Literal["not yet seen", "registered", "refused"] = "not yet seen"
    reason: str = ""


class RegistrationService:
    """Answers the kubelet, and keeps what it said; `endpoint` is the DRA service's socket, `name`
    the driver's. `on_change` gets what it said when that is something else than before.
    """

    def __init__(
        self,
        endpoint: Path,
        on_change: Callable[[Registration], None] = lambda _: None,
        *,
        name: str = DRIVER,
    ) -> None:
        self.status = Registration()
        self._on_change = on_change
        self._info = registration_pb2.PluginInfo(
            type="DRAPlugin", name=name, endpoint=str(endpoint), supported_versions=VERSIONS
        )

    def handler(self) -> grpc.GenericRpcHandler:
        return _service(
            _REGISTRATION,
            GetInfo=(registration_pb2.InfoRequest, self._get_info),
            NotifyRegistrationStatus=(registration_pb2.RegistrationStatus, self._notify),
        )

    async def _get_info(
        self, _: registration_pb2.InfoRequest, context: _Context
    ) -> registration_pb2.PluginInfo:
        return self._info

    async def _notify(
        self, status: registration_pb2.RegistrationStatus, context: _Context
    ) -> registration_pb2.RegistrationStatusResponse:
        before = self.status
        if status.plugin_registered:
            self.status = Registration("registered")
            log.info("the kubelet registered the DRA driver")
        else:
            self.status = refused = Registration("refused", status.error[:_MAX_REASON])
            if refused != before:  # the kubelet tries again and again
                log.error("the kubelet refused the DRA driver", reason=refused.reason)
        if self.status != before:
            self._on_change(self.status)
        return registration_pb2.RegistrationStatusResponse()


# --- claims ---------------------------------------------------------------------------------------


class DraService:
    """Answers for each claim of a call by itself: its devices, or the text of its error."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    def handler(self) -> grpc.GenericRpcHandler:
        return _service(
            _DRA,
            NodePrepareResources=(dra_pb2.NodePrepareResourcesRequest, self._prepare_all),
            NodeUnprepareResources=(dra_pb2.NodeUnprepareResourcesRequest, self._release_all),
        )

    async def _prepare_all(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: _Context
    ) -> dra_pb2.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*map(self._prepare, request.claims))
        by_uid = {claim.uid: one for claim, one in zip(request.claims, answers, strict=True)}
        return dra_pb2.NodePrepareResourcesResponse(claims=by_uid)

    async def _release_all(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: _Context
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        answers = await asyncio.gather(*map(self._release, request.claims))
        by_uid = {claim.uid: one for claim, one in zip(request.claims, answers, strict=True)}
        return dra_pb2.NodeUnprepareResourcesResponse(claims=by_uid)

    async def _prepare(self, claim: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
        try:
            devices = await self._calls.prepare(_named(claim))
        except NodeagentError as error:
            return dra_pb2.NodePrepareResourceResponse(error=_text(error))
        return dra_pb2.NodePrepareResourceResponse(devices=map(_device, devices))

    async def _release(self, claim: dra_pb2.Claim) -> dra_pb2.NodeUnprepareResourceResponse:
        try:
            await self._calls.release(_named(claim))
        except NodeagentError as error:
            return dra_pb2.NodeUnprepareResourceResponse(error=_text(error))
        return dra_pb2.NodeUnprepareResourceResponse()


def _named(claim: dra_pb2.Claim) -> ClaimName:
    return ClaimName(claim.namespace, claim.name, claim.uid)


def _device(device: ClaimedDevice) -> dra_pb2.Device:
    result = device.result
    return dra_pb2.Device(
        # The kubelet knows requests without the alternative (`firstAvailable`) that was allocated.
        request_names=[result.main_request],
        pool_name=result.pool,
        device_name=result.device,
        cdi_device_ids=[device.cdi_id],
        share_id=result.share_id or None,
    )


def _text(error: NodeagentError) -> str:
    """A path in it may have bytes that are not a text."""
    return str(error).encode(errors="replace").decode()


# --- the health of devices ------------------------------------------------------------------------


def health_streams(feed: HealthFeed) -> list[grpc.GenericRpcHandler]:
    """Serve NodeWatchResources; each stream lasts until the kubelet or the server ends it."""

    async def watch(_: bytes, context: _Context) -> None:
        async with aclosing(feed.watch()) as lists:
            async for devices in lists:
                await context.write(
                    dra_health_pb2.NodeWatchResourcesResponse(devices=map(_health, devices))
                )

    stream: Any = grpc.unary_stream_rpc_method_handler(watch, response_serializer=_serialized)
    methods: dict[str, Any] = {"NodeWatchResources": stream}
    return [grpc.method_handlers_generic_handler(service, methods) for service in _HEALTH]


def _health(device: DeviceHealth) -> dra_health_pb2.DeviceHealth:
    message = device.message.encode(errors="replace")
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - len(_CUT)] + _CUT.encode()
    return dra_health_pb2.DeviceHealth(
        device=dra_health_pb2.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=device.health.upper(),
        last_updated_time=int(device.at),
        message=message.decode(errors="ignore"),
    )
