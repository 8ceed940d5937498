import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog.testing

from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.cluster.kubelet.generated import dra_pb2
from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import RegistrationStatus
from nodeagent.cluster.kubelet.plugin import driver
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimName, HealthFeed
from nodeagent.cluster.kubelet.plugin.sockets import MAX_REQUEST, serve
from nodeagent.errors import NodeagentError
from tests.cluster.kubelet.plugin.rig import Claims, claimed
from tests.machine_load import until
from tests.simulated_cluster.kubelet_plugins import channel_to

pytestmark = pytest.mark.usefixtures("grpc_ends")
DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
PREPARE, RELEASE = f"{DRA}/NodePrepareResources", f"{DRA}/NodeUnprepareResources"
GET_INFO = "/pluginregistration.Registration/GetInfo"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
ENDPOINT = Path("/var/lib/kubelet/plugins/gpu.nodeagent.io/dra.sock")

CLAIM = b"\x0a\x04team\x12\x02a1\x1a\x05claim"  # namespace, uid and name: 6 + 4 + 7 = 17 bytes
REQUEST = b"\x0a\x11" + CLAIM
DEVICE = (  # 6 + 7 + 15 + 7 + 4 = 39 bytes
    b"\x0a\x04main"  # the request, without the alternative that was allocated
    b"\x12\x05n/gpu"
    b"\x1a\x0dmig-1g-10gb-6"
    b"\x22\x05k/c=1"
    b"\x2a\x02s1"
)
PREPARED = b"\x0a\x2f" + b"\x0a\x02a1" + b"\x12\x29" + b"\x0a\x27" + DEVICE
REFUSED = b"\x0a\x0c" + b"\x0a\x02a1" + b"\x12\x06" + b"\x12\x04full"
RELEASED = b"\x0a\x06" + b"\x0a\x02a1" + b"\x12\x00"
STILL_USED = b"\x0a\x0c" + b"\x0a\x02a1" + b"\x12\x06" + b"\x0a\x04used"
UNHEALTHY = (
    b"\x0a\x1a"  # 14 + 2 + 2 + 8 = 26 bytes
    b"\x0a\x0c" + b"\x0a\x05n/gpu\x12\x03gpu" + b"\x10\x02" + b"\x18\x07" + b"\x2a\x06Xid 79"
)


class Client:
    """Sends bytes as they are, each time over a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def send(self, method: str, request: bytes) -> bytes:
        async with channel_to(str(self._socket)) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            return await call(request, timeout=60)

    async def prepare(self, *claims: dra_pb2.Claim) -> dra_pb2.NodePrepareResourcesResponse:
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims).SerializeToString()
        return dra_pb2.NodePrepareResourcesResponse.FromString(await self.send(PREPARE, request))

    async def release(self, *claims: dra_pb2.Claim) -> dra_pb2.NodeUnprepareResourcesResponse:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims).SerializeToString()
        return dra_pb2.NodeUnprepareResourcesResponse.FromString(await self.send(RELEASE, request))


@pytest.fixture
async def client(claims: Claims, tmp_path: Path) -> AsyncIterator[Client]:
    calls, path = claims.calls(), tmp_path / "dra.sock"
    async with serve(path, [driver.DraService(calls).handler()]):
        yield Client(path)
    await calls.close()


def named(*uids: str) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace="team", name=f"claim-{uid}", uid=uid) for uid in uids]


# --- claims ---------------------------------------------------------------------------------------


async def test_whole_calls(client: Client, claims: Claims) -> None:
    """Prepared, released, refused and still used; a call without claims is answered, too."""
    claims.devices = lambda _: (claimed("main/small", "n/gpu", "mig-1g-10gb-6", "k/c=1", "s1"),)
    assert await client.send(PREPARE, REQUEST) == PREPARED
    assert claims.prepared == {ClaimName("team", "claim", "a1")}
    assert await client.send(RELEASE, REQUEST) == RELEASED
    claims.errors["a1"] = NodeagentError("full")
    assert await client.send(PREPARE, REQUEST) == REFUSED
    claims.errors["a1"] = NodeagentError("used")
    assert await client.send(RELEASE, REQUEST) == STILL_USED
    assert await client.send(PREPARE, b"") == b""


async def test_every_uid_is_answered_and_no_other(client: Client, claims: Claims) -> None:
    claims.errors["a2"] = NodeagentError("GPU 0 is full", remedy="wait")
    claims.errors["a3"] = KeyError("slices")
    claims.errors["a4"] = NodeagentError("/run/\udcff is full")
    answer = await client.prepare(*named("a1", "a2", "a3", "a4"))
    assert set(answer.claims) == {"a1", "a2", "a3", "a4"}
    assert [device.device_name for device in answer.claims["a1"].devices] == ["mig-1g-10gb-6"]
    assert answer.claims["a1"].error == ""
    assert answer.claims["a2"].error == "GPU 0 is full (wait)"
    assert "KeyError('slices')" in answer.claims["a3"].error
    assert answer.claims["a4"].error == "/run/? is full"
    claims.errors["a2"] = NodeagentError("process 7 uses it")
    released = await client.release(*named("a1", "a2"))
    errors = {uid: entry.error for uid, entry in released.claims.items()}
    assert errors == {"a1": "", "a2": "process 7 uses it"}


async def test_a_share_only_where_there_is_one(client: Client, claims: Claims) -> None:
    """The field is absent else, and not empty."""
    claims.devices = lambda _: (claimed("side", "n/gpu", "gpu", "k/c=3"),)
    [whole] = (await client.prepare(*named("a1"))).claims["a1"].devices
    assert list(whole.request_names) == ["side"]
    assert not whole.HasField("share_id")


async def test_claims_of_a_call_are_worked_on_side_by_side(client: Client, claims: Claims) -> None:
    claims.hold()
    call = asyncio.create_task(client.prepare(*named(*(f"{n:x}" for n in range(128)))))
    await until(lambda: len(claims.begun) >= 128)
    claims.go_on()
    assert len((await call).claims) == 128


async def test_a_call_that_is_too_large(client: Client, claims: Claims) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.send(PREPARE, bytes(MAX_REQUEST + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert claims.begun == []
    assert await client.send(PREPARE, b"") == b""


# --- registration ---------------------------------------------------------------------------------


@asynccontextmanager
async def registry(folder: Path) -> AsyncIterator[tuple[driver.RegistrationService, Client]]:
    service, path = driver.RegistrationService(ENDPOINT), folder / "reg.sock"
    async with serve(path, [service.handler()]):
        yield service, Client(path)


async def test_what_the_kubelet_reads_of_the_driver(tmp_path: Path) -> None:
    async with registry(tmp_path) as (service, client):
        assert await client.send(GET_INFO, b"") == (
            b"\x0a\x09DRAPlugin"
            b"\x12\x10gpu.nodeagent.io"
            b"\x1a\x32/var/lib/kubelet/plugins/gpu.nodeagent.io/dra.sock"
            b"\x22\x0cv1.DRAPlugin"
            b"\x22\x14v1.DRAResourceHealth"
            b"\x22\x1av1alpha1.DRAResourceHealth"
        )
        assert service.status == driver.Registration("not yet seen")  # any program may ask


async def test_what_the_kubelet_says(tmp_path: Path) -> None:
    refusal = RegistrationStatus(error="x" * 5000).SerializeToString()
    with structlog.testing.capture_logs() as logs:
        async with registry(tmp_path) as (service, client):
            for _ in range(3):
                assert await client.send(NOTIFY, refusal) == b""
            assert service.status == driver.Registration("refused", "x" * 1000)
            assert await client.send(NOTIFY, b"\x08\x01") == b""
            assert service.status == driver.Registration("registered")
    assert [line["event"] for line in logs] == [
        "the kubelet refused the DRA driver",
        "the kubelet registered the DRA driver",
    ]


# --- health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health(tmp_path: Path, version: str) -> None:
    """The list as the kubelet gets it when it begins to watch: 1.37 by v1, 1.36 by v1alpha1."""
    feed, socket = HealthFeed(), tmp_path / "dra.sock"
    feed.publish([DeviceHealth("n/gpu", "gpu", "unhealthy", 7.9, "Xid 79")])
    async with serve(socket, driver.health_streams(feed)), channel_to(str(socket)) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources"
        )
        call = watch(b"", timeout=60)
        assert await call.read() == UNHEALTHY
        call.cancel()
