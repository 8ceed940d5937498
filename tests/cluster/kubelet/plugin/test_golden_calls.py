"""Whole calls of a kubelet byte by byte, as no message of this program's own wrote or reads them.

See test_wire.py for how the bytes come about.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimCalls, ClaimName, HealthFeed
from nodeagent.cluster.kubelet.plugin.driver import DraService, health_streams
from nodeagent.cluster.kubelet.plugin.sockets import serve
from nodeagent.errors import NodeagentError
from tests.cluster.kubelet.plugin.rig import Claims, claimed
from tests.simulated_cluster.kubelet_plugins import channel_to

pytestmark = pytest.mark.usefixtures("grpc_ends")

DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
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
SICK = (
    b"\x0a\x1a"  # 14 + 2 + 2 + 8 = 26 bytes
    b"\x0a\x0c" + b"\x0a\x05n/gpu\x12\x03gpu" + b"\x10\x02" + b"\x18\x07" + b"\x2a\x06Xid 79"
)


async def send(socket: Path, method: str, request: bytes) -> bytes:
    """One call over a connection of its own."""
    async with channel_to(str(socket)) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"{DRA}/{method}"
        )
        return await call(request, timeout=60)


async def test_claims(claims: Claims, tmp_path: Path) -> None:
    """Prepared, refused, released and still used."""
    calls, socket = ClaimCalls(claims), tmp_path / "dra.sock"
    claims.devices = lambda _: (claimed("main/small", "n/gpu", "mig-1g-10gb-6", "k/c=1", "s1"),)
    prepare, release = "NodePrepareResources", "NodeUnprepareResources"
    async with serve(socket, [DraService(calls).handler()]):
        assert await send(socket, prepare, REQUEST) == PREPARED
        assert claims.prepared == {ClaimName("team", "claim", "a1")}
        assert await send(socket, release, REQUEST) == RELEASED
        claims.errors["a1"] = NodeagentError("full")
        assert await send(socket, prepare, REQUEST) == REFUSED
        claims.errors["a1"] = NodeagentError("used")
        assert await send(socket, release, REQUEST) == STILL_USED
    await calls.close()


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health(tmp_path: Path, version: str) -> None:
    """The list as the kubelet gets it when it begins to watch: 1.37 by v1, 1.36 by v1alpha1."""
    feed, socket = HealthFeed(), tmp_path / "dra.sock"
    feed.publish([DeviceHealth("n/gpu", "gpu", "unhealthy", 7.9, "Xid 79")])
    async with serve(socket, health_streams(feed)), channel_to(str(socket)) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources"
        )
        call = watch(b"", timeout=60)
        assert await call.read() == SICK
        call.cancel()
