import asyncio
import os
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession, UnixConnector

from nodeagent.api.limits import RequestLimits
from tests.api.serving import api
from tests.machine_load import stretched

pytestmark = pytest.mark.virtual_time
HEAD = b"POST /v1/plan/preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(base: str, sent: bytes, stack: AsyncExitStack) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rsplit(":", 1)[1]))
    stack.callback(writer.close)
    writer.write(sent)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("sent", [HEAD[:9], HEAD, HEAD + b"\r\n", HEAD + b"\r\nabc"])
async def test_a_whole_request_has_to_arrive_in_time(sent: bytes) -> None:
    async with api(limits=RequestLimits(request=0.3)) as served, AsyncExitStack() as stack:
        reader, writer = await _connect(served.base, sent, stack)

        async def trickle() -> None:
            while True:
                await asyncio.sleep(0.1)
                writer.write(b"a")

        trickling = asyncio.create_task(trickle())
        try:
            async with asyncio.timeout(stretched(30)):
                answer = await reader.readline()
        finally:
            trickling.cancel()
        assert answer == b"HTTP/1.1 408 Request Timeout\r\n"
        assert served.refusals.counts["api", "slow"] == 1
        assert (await served.get("/healthz"))[0] == 200


async def test_an_idle_connection_ends_after_a_while() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with api(limits=RequestLimits(idle=0.2)) as served, AsyncExitStack() as stack:
        for sent in (b"", request):
            reader, _ = await _connect(served.base, sent, stack)
            async with asyncio.timeout(stretched(30)):
                assert (b"200 OK" in await reader.read()) is bool(sent)


async def test_who_does_not_take_an_answer_is_cut_off() -> None:
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with api(limits=RequestLimits(idle=0.2)) as served, AsyncExitStack() as stack:
        own = stack.enter_context(socket.socket())
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(own, ("127.0.0.1", int(served.base.rsplit(":")[-1])))
        asking = asyncio.create_task(loop.sock_sendall(own, request * 20_000))
        async with asyncio.timeout(stretched(30)):
            while not served.refusals.counts["api", "slow"]:
                await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_slow_clients_keep_no_other_client_out(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with api(
        unix_socket=path, limits=RequestLimits(connections=20, connections_of_peer=10)
    ) as one:
        async with AsyncExitStack() as stack:
            for sent in (b"", HEAD, HEAD + b"\r\na") * 10:
                await _connect(one.base, sent, stack)
            for _ in range(5):
                async with ClientSession(one.base) as session, session.get("/healthz") as answer:
                    assert answer.status == 200
            async with (
                ClientSession("http://agent", connector=UnixConnector(str(path))) as session,
                session.get("/healthz") as answer,
            ):
                assert answer.status == 200
        assert one.refusals.counts["api", "connections"] >= 20
        assert one.refusals.counts["socket", "connections"] == 0


async def test_a_full_listener_takes_nothing_from_the_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    events = {"Accept": "text/event-stream"}
    async with (
        api(unix_socket=path, limits=RequestLimits(connections=1, connections_of_peer=1)) as one,
        one.session.get(f"{one.base}/v1/events", headers=events) as following,
    ):
        await following.content.readline()
        with pytest.raises(ClientConnectionError):
            async with ClientSession(one.base) as session, session.get("/healthz"):
                pass
        async with (
            ClientSession("http://agent", connector=UnixConnector(str(path))) as session,
            session.get("/healthz") as answer,
        ):
            assert answer.status == 200


ASK = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setuid(int(sys.argv[2]))
own = socket.socket(socket.AF_UNIX)
own.connect("agent.sock")
own.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: agent\\r\\nConnection: close\\r\\n\\r\\n")
sys.stdout.buffer.write(own.makefile("rb").readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_the_unix_socket_asks_who_connects(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with api(unix_socket=path) as served:
        await asyncio.to_thread(tmp_path.chmod, 0o711)
        await asyncio.to_thread(path.chmod, 0o666)
        assert b"200 OK" in await _ask_as(path, 0)
        assert b"403 Forbidden" in await _ask_as(path, 4001)
        assert served.refusals.counts["socket", "peer"] == 1


async def _ask_as(path: Path, user: int) -> bytes:
    asked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", ASK, str(path.parent), str(user)],
        stdout=subprocess.PIPE,
        check=True,
    )
    return asked.stdout
