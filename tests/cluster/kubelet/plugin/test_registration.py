"""What is reported of the driver to the kubelet, and what is kept of its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog.testing

from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import RegistrationStatus
from nodeagent.cluster.kubelet.plugin.driver import Registration, RegistrationService
from nodeagent.cluster.kubelet.plugin.sockets import serve
from tests.simulated_cluster.kubelet_plugins import channel_to

pytestmark = pytest.mark.usefixtures("grpc_ends")

ENDPOINT = Path("/var/lib/kubelet/plugins/gpu.nodeagent.io/dra.sock")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[RegistrationService, grpc.aio.Channel]]:
    """The service, and a connection to it."""
    service, path = RegistrationService(ENDPOINT), folder / "reg.sock"
    async with serve(path, [service.handler()]), channel_to(str(path)) as channel:
        yield service, channel


async def send(channel: grpc.aio.Channel, method: str, request: bytes) -> bytes:
    """A call with these bytes."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        f"/pluginregistration.Registration/{method}"
    )
    return await call(request, timeout=60)


async def test_what_the_kubelet_is_told(tmp_path: Path) -> None:
    """Byte for byte: the kind, the name, the socket, and version 1 before anything else."""
    async with served(tmp_path) as (service, channel):
        assert await send(channel, "GetInfo", b"") == (
            b"\x0a\x09DRAPlugin"
            b"\x12\x10gpu.nodeagent.io"
            b"\x1a\x32/var/lib/kubelet/plugins/gpu.nodeagent.io/dra.sock"
            b"\x22\x0cv1.DRAPlugin"
            b"\x22\x14v1.DRAResourceHealth"
            b"\x22\x1av1alpha1.DRAResourceHealth"
        )
        assert service.status == Registration("not yet seen")  # any program may ask


async def test_what_the_kubelet_says(tmp_path: Path) -> None:
    """The last word counts; a long one is cut, and one that is repeated is logged once."""
    refusal = RegistrationStatus(error="x" * 5000).SerializeToString()
    with structlog.testing.capture_logs() as logs:
        async with served(tmp_path) as (service, channel):
            for _ in range(3):
                assert await send(channel, "NotifyRegistrationStatus", refusal) == b""
            assert service.status == Registration("refused", "x" * 1000)
            assert await send(channel, "NotifyRegistrationStatus", b"\x08\x01") == b""
            assert service.status == Registration("registered")
    assert [line["event"] for line in logs] == [
        "the kubelet refused the DRA driver",
        "the kubelet registered the DRA driver",
    ]


async def test_a_word_that_cannot_be_read(tmp_path: Path) -> None:
    """It changes nothing."""
    async with served(tmp_path) as (service, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="unreadable"):
            await send(channel, "NotifyRegistrationStatus", b"\x12\xff")
        assert service.status == Registration()
