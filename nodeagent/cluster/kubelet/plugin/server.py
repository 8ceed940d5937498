"""The gRPC service with which the kubelet has claims prepared and released."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from nodeagent.claims.model import ClaimedDevice
from nodeagent.cluster.kubelet.generated import dra_pb2 as messages
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls
from nodeagent.cluster.kubelet.plugin.claims import read_claim_name
from nodeagent.errors import NodeagentError

SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
VERSION: Final = "v1.DRAPlugin"  # its name among the supported versions
MOST_CLAIMS: Final = 256  # in one call; a pod has far fewer

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Kind = type[messages.NodePrepareResourcesRequest | messages.NodeUnprepareResourcesRequest]


class CallRefused(NodeagentError):
    """A call of the kubelet cannot be answered claim by claim."""


class DraService:
    """Answers for each claim of a call by itself: its devices, or the text of its error."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(self._prepare_all),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(self._release_all),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _prepare_all(self, request: bytes, context: _Context) -> bytes:
        claims = await _claims(messages.NodePrepareResourcesRequest, request, context)
        answers = await asyncio.gather(*map(self._prepare, claims.values()))
        made = messages.NodePrepareResourcesResponse(claims=dict(zip(claims, answers, strict=True)))
        return made.SerializeToString()

    async def _release_all(self, request: bytes, context: _Context) -> bytes:
        claims = await _claims(messages.NodeUnprepareResourcesRequest, request, context)
        answers = await asyncio.gather(*map(self._release, claims.values()))
        made = messages.NodeUnprepareResourcesResponse(
            claims=dict(zip(claims, answers, strict=True))
        )
        return made.SerializeToString()

    async def _prepare(self, claim: messages.Claim) -> messages.NodePrepareResourceResponse:
        try:
            name = read_claim_name(claim.namespace, claim.name, claim.uid)
            devices = await self._calls.prepare(name)
        except NodeagentError as error:
            return messages.NodePrepareResourceResponse(error=_text(error))
        return messages.NodePrepareResourceResponse(devices=map(_encoded, devices))

    async def _release(self, claim: messages.Claim) -> messages.NodeUnprepareResourceResponse:
        try:
            await self._calls.release(read_claim_name(claim.namespace, claim.name, claim.uid))
        except NodeagentError as error:
            return messages.NodeUnprepareResourceResponse(error=_text(error))
        return messages.NodeUnprepareResourceResponse()


async def _claims(kind: _Kind, request: bytes, context: _Context) -> Mapping[str, messages.Claim]:
    """The claims of a request by uid. Ends a call that is refused."""
    try:
        return claims_of(kind, request)
    except CallRefused as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)


def claims_of(kind: _Kind, request: bytes) -> Mapping[str, messages.Claim]:
    """The claims of a request by uid; raises CallRefused where not each uid can be answered."""
    try:
        # Decoded here: inside gRPC a failure would be logged past the agent's logging.
        claims: Sequence[messages.Claim] = kind.FromString(request).claims
    except DecodeError as error:
        raise CallRefused(f"unreadable: {error}") from error
    if len(claims) > MOST_CLAIMS:
        raise CallRefused(f"{len(claims)} claims in one call, at most {MOST_CLAIMS}")
    by_uid = {claim.uid: claim for claim in claims}
    if len(by_uid) < len(claims):
        raise CallRefused("the call names a uid twice")
    return by_uid


def _encoded(device: ClaimedDevice) -> messages.Device:
    result = device.result
    return messages.Device(
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
