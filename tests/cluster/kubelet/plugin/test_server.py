"""The DRA service against calls that no kubelet should make, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeagent.cluster.kubelet.generated.dra_pb2 import (
    Claim,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls
from nodeagent.cluster.kubelet.plugin.driver import MOST_CLAIMS, DraService
from nodeagent.cluster.kubelet.plugin.sockets import LARGEST_REQUEST, serve
from nodeagent.errors import NodeagentError
from tests.cluster.kubelet.plugin.rig import Claims, claimed
from tests.machine_load import stretched
from tests.simulated_cluster.kubelet_plugins import channel_to

pytestmark = pytest.mark.usefixtures("grpc_ends")
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
METHODS = ["NodePrepareResources", "NodeUnprepareResources"]


class Client:
    """Sends bytes as they are, each time over a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def send(self, method: str, request: bytes) -> bytes:
        async with channel_to(str(self._socket)) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"{SERVICE}/{method}"
            )
            return await call(request, timeout=60)

    async def prepare(self, *claims: Claim) -> NodePrepareResourcesResponse:
        request = NodePrepareResourcesRequest(claims=claims).SerializeToString()
        return NodePrepareResourcesResponse.FromString(await self.send(METHODS[0], request))

    async def release(self, *claims: Claim) -> NodeUnprepareResourcesResponse:
        request = NodeUnprepareResourcesRequest(claims=claims).SerializeToString()
        return NodeUnprepareResourcesResponse.FromString(await self.send(METHODS[1], request))


@pytest.fixture
async def client(claims: Claims, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of the service."""
    calls, path = ClaimCalls(claims), tmp_path / "dra.sock"
    async with serve(path, [DraService(calls).handler()]):
        yield Client(path)
    await calls.close()


def named(*uids: str) -> list[Claim]:
    """Claims with these uids."""
    return [Claim(namespace="team", name=f"claim-{uid}", uid=uid) for uid in uids]


async def refused(client: Client, method: str, request: bytes) -> tuple[grpc.StatusCode, str]:
    """The error that the whole call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.send(method, request)
    return caught.value.code(), caught.value.details() or ""


async def test_every_uid_is_answered_and_no_other(client: Client, claims: Claims) -> None:
    """Those that are done, those that fail and those that are no uid: each has its own text."""
    claims.errors["a2"] = NodeagentError("GPU 0 is full", remedy="wait")
    claims.errors["a3"] = KeyError("slices")
    bad = Claim(namespace="team", name="claim", uid="../../etc")
    answer = await client.prepare(*named("a1", "a2", "a3"), bad)
    assert set(answer.claims) == {"a1", "a2", "a3", "../../etc"}
    assert [device.device_name for device in answer.claims["a1"].devices] == ["mig-1g-10gb-6"]
    assert answer.claims["a1"].error == ""
    assert answer.claims["a2"].error == "GPU 0 is full (wait)"
    assert "KeyError('slices')" in answer.claims["a3"].error
    assert "is not one of Kubernetes" in answer.claims["../../etc"].error
    assert sorted(claims.begun) == [("prepare", "a1"), ("prepare", "a2"), ("prepare", "a3")]


async def test_releases_are_answered_likewise(client: Client, claims: Claims) -> None:
    """No error means that nothing is left of the claim."""
    claims.errors["a2"] = NodeagentError("process 7 uses it")
    answer = await client.release(*named("a1", "a2"), Claim(uid="A"))
    assert {uid: entry.error for uid, entry in answer.claims.items()} == {
        "a1": "",
        "a2": "process 7 uses it",
        "A": 'the claim\'s namespace "" is not one of Kubernetes',
    }


async def test_a_device_as_the_kubelet_wants_it(client: Client, claims: Claims) -> None:
    """Requests without the alternative that was allocated; a share only where there is one."""
    claims.devices = lambda _: (
        claimed("main/small", "n/gpu", "mps-8gi-1", "k/c=1", "s1"),
        claimed("side", "n/gpu", "gpu", "k/c=3"),
    )
    shared, whole = (await client.prepare(*named("a1"))).claims["a1"].devices
    assert list(shared.request_names) == ["main"]
    assert list(shared.cdi_device_ids) == ["k/c=1"]
    assert (shared.pool_name, shared.device_name, shared.share_id) == ("n/gpu", "mps-8gi-1", "s1")
    assert list(whole.request_names) == ["side"]
    assert not whole.HasField("share_id")


async def test_an_error_with_bytes_that_are_no_text(client: Client, claims: Claims) -> None:
    """As a path may have; the other claims are answered as if it were not there."""
    claims.errors["a1"] = NodeagentError("/run/\udcff is full")
    answer = await client.prepare(*named("a1", "a2"))
    assert answer.claims["a1"].error == "/run/? is full"
    assert answer.claims["a2"].devices


async def test_claims_of_a_call_are_worked_on_side_by_side(client: Client, claims: Claims) -> None:
    """All have begun before the first ends."""
    claims.hold()
    call = asyncio.create_task(client.prepare(*named(*(f"{n:x}" for n in range(MOST_CLAIMS)))))
    async with asyncio.timeout(stretched(60)):
        while len(claims.begun) < MOST_CLAIMS:
            await asyncio.sleep(0.002)
    claims.go_on()
    assert len((await call).claims) == MOST_CLAIMS


@pytest.mark.parametrize("method", METHODS)
async def test_calls_that_cannot_be_answered(client: Client, claims: Claims, method: str) -> None:
    """Garbage, too much and a uid named twice end the call; no work is begun, and it serves on."""
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    code, words = await refused(client, method, b"\x0a\xff")
    assert (code, words.split(":")[0]) == (invalid, "unreadable")
    code, words = await refused(client, method, b"\x0a\x03\x12\x01\xff")  # a uid that is not a text
    assert (code, words.split(":")[0]) == (invalid, "unreadable")
    many = named(*(f"{number:x}" for number in range(MOST_CLAIMS + 1)))
    request = NodePrepareResourcesRequest(claims=many).SerializeToString()
    assert await refused(client, method, request) == (
        invalid,
        f"{MOST_CLAIMS + 1} claims in one call, at most {MOST_CLAIMS}",
    )
    request = NodePrepareResourcesRequest(claims=named("a1", "a1")).SerializeToString()
    assert await refused(client, method, request) == (invalid, "the call names a uid twice")
    code, _ = await refused(client, method, bytes(LARGEST_REQUEST + 1))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert claims.begun == []
    assert await client.send(method, b"") == b""
