import asyncio
import gzip
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path, PosixPath

import bcrypt
import pytest
from aiohttp import ClientConnectionError, ClientSession, encode_basic_auth

from nodeagent.api.limits import TCP_LIMITS, Refusals, RequestLimits
from nodeagent.api.metrics_listener import MetricsListener
from nodeagent.errors import NodeagentError
from tests.agent_environment import port_kept_free
from tests.api.serving import SCRAPED, Agent, Api, api
from tests.cluster.client.rig import certificate
from tests.cluster.client.rig import running as beside
from tests.machine_load import stretched, until

PASSWORD = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users: {{prometheus: {PASSWORD}}}\n"
TLS = "tls_server_config: {cert_file: certificate.pem, key_file: key.pem}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "web.yaml"
    path.write_text(text)
    return path


class Served:
    """A listener that runs, and the problems it reported."""

    def __init__(self, web_config: Path | None, limits: RequestLimits = TCP_LIMITS) -> None:
        self.refusals = Refusals()
        self.reported: list[NodeagentError | None] = []
        self.listener = MetricsListener(
            Agent(),
            host="127.0.0.1",
            port=0,
            web_config=web_config,
            report=self.reported.append,
            refusals=self.refusals,
            limits=limits,
            interval=0.02,
        )

    async def status(
        self, path: str = "/metrics", *, tls: Path | None = None, password: str = ""
    ) -> int:
        context = ssl.create_default_context(cafile=tls / "certificate.pem") if tls else None
        url = f"{'https' if tls else 'http'}://127.0.0.1:{self.listener.port}{path}"
        headers = {"Authorization": encode_basic_auth("prometheus", password)} if password else {}
        async with (
            ClientSession() as session,
            session.get(url, ssl=context or False, headers=headers) as answer,
        ):
            await answer.read()
            return answer.status


@asynccontextmanager
async def serving(
    web_config: Path | None = None, limits: RequestLimits = TCP_LIMITS
) -> AsyncIterator[Served]:
    async with running(Served(web_config, limits)) as served:
        yield served


@asynccontextmanager
async def running(served: Served) -> AsyncIterator[Served]:
    async with beside(served.listener.run()):
        await until(lambda: served.reported)
        yield served


async def test_metrics_and_health_are_all_there_is() -> None:
    async with serving() as served:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert await served.status(path) == 200
        for path in ("/", "/v1/status", "/v1/mps", "/openapi.json"):
            assert await served.status(path) == 404
        async with ClientSession() as session:
            url = f"http://127.0.0.1:{served.listener.port}/metrics"
            async with session.get(url) as answer:
                assert await answer.read() == SCRAPED
            async with session.get(url, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 403


async def test_passwords(tmp_path: Path) -> None:
    """Without the right one it is a 401 that says how; health is no exception."""
    async with serving(written(tmp_path, USERS)) as served:
        assert await served.status(password="secret") == 200
        assert await served.status(password="wrong") == 401
        assert await served.status("/healthz") == 401


async def test_a_password_in_no_text_at_all(tmp_path: Path) -> None:
    async with serving(written(tmp_path, USERS)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.listener.port)
        writer.write(b"GET /metrics HTTP/1.0\r\nAuthorization: Basic \xc3\xa4\xff\r\n\r\n")
        assert (await reader.read(12)).endswith(b" 401")
        writer.close()


async def test_guessers_disturb_no_user_who_was_let_in(tmp_path: Path) -> None:
    numbers = count()
    async with serving(written(tmp_path, USERS)) as served:
        assert await served.status(password="secret") == 200

        async def guess() -> None:
            while True:
                with suppress(ClientConnectionError):
                    assert await served.status(password=f"guess {next(numbers)}") in {401, 429}

        guessing = [asyncio.create_task(guess()) for _ in range(8)]
        counts = served.refusals.counts
        try:
            await until(lambda: counts["metrics", "password"] and counts["metrics", "busy"] > 20)
            assert await served.status(password="secret") == 200
        finally:
            for task in guessing:
                task.cancel()
            await asyncio.gather(*guessing, return_exceptions=True)
        assert counts["metrics", "password"] < counts["metrics", "busy"]


async def test_a_new_certificate_is_taken_up(tmp_path: Path) -> None:
    old, new = certificate(tmp_path / "old"), certificate(tmp_path / "new")
    here = tmp_path / "here"
    shutil.copytree(old, here)
    async with serving(written(here, TLS)) as served:
        assert await served.status(tls=old) == 200
        with pytest.raises(ssl.SSLError):
            await served.status(tls=new)
        shutil.copy(new / "certificate.pem", here)
        await until(lambda: served.reported[-1])  # the pair does not match in between
        assert "belong together" in str(served.reported[-1])
        assert await served.status(tls=old) == 200
        shutil.copy(new / "key.pem", here)
        await until(lambda: served.reported[-1] is None)
        assert await served.status(tls=new) == 200


class RewrittenWhileRead(PosixPath):
    """A file that another program writes anew between its first look and the second."""

    looks = 0

    def stat(self, **given: bool) -> os.stat_result:
        if self.name == "web.yaml":
            self.looks += 1
            if self.looks == 2:
                self.write_text(TLS + USERS)
        return super().stat(**given)


async def test_what_is_written_while_the_file_is_read_is_taken_up(tmp_path: Path) -> None:
    here = certificate(tmp_path / "here")
    async with serving(RewrittenWhileRead(written(here, TLS))) as served:
        await until(lambda: len(served.reported) > 1)
        assert await served.status(tls=here) == 401
        assert await served.status(tls=here, password="secret") == 200


async def test_until_the_files_are_there_connections_are_refused(tmp_path: Path) -> None:
    made = certificate(tmp_path / "made")
    served = Served(written(tmp_path, TLS.replace("file: ", "file: t/")))
    with port_kept_free() as served.listener.port:
        async with running(served):
            assert "cannot be read" in str(served.reported)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", served.listener.port)
            shutil.copytree(made, tmp_path / "t")
            await until(lambda: served.reported[-1] is None)
            assert await served.status(tls=made) == 200


async def test_client_certificates(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    client = "client_ca_file: certificate.pem, client_auth_type: RequireAndVerifyClientCert}"
    async with serving(written(tmp_path, TLS.replace("}", f", {client}"))) as served:
        with pytest.raises((ClientConnectionError, ssl.SSLError)):
            await served.status(tls=made)
        context = ssl.create_default_context(cafile=made / "certificate.pem")
        context.load_cert_chain(made / "certificate.pem", made / "key.pem")
        url = f"https://127.0.0.1:{served.listener.port}/metrics"
        async with ClientSession() as session, session.get(url, ssl=context) as answer:
            assert answer.status == 200


@pytest.mark.virtual_time
async def test_who_never_agrees_on_tls_keeps_no_other_client_out(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    limits = RequestLimits(connections=6, connections_of_peer=4, handshake=0.5)
    config = written(tmp_path, TLS)
    async with serving(config, limits) as served, AsyncExitStack() as stack:
        address = ("127.0.0.1", served.listener.port)
        opened = [await asyncio.open_connection(*address) for _ in range(8)]
        for _, writer in opened:
            stack.callback(writer.close)
        assert await served.status(tls=made) == 200
        assert served.refusals.counts["metrics", "connections"] == 5
        opened[-1][1].write(b"this is no TLS" * 10)
        async with asyncio.timeout(stretched(30)):
            for reader, _ in opened:
                with suppress(ConnectionError):
                    await reader.read()
        assert served.refusals.counts["metrics", "handshake"] == 3


async def test_a_handshake_under_way_does_not_outlive_the_configuration(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    config = written(tmp_path, TLS)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=made / "certificate.pem")
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with serving(config) as served, AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(stretched(30)))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.listener.port)
        stack.callback(writer.close)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        written(tmp_path, TLS + USERS)
        await until(lambda: len(served.reported) == 2)
        assert await served.status(tls=made) == 401
        writer.write(outgoing.read())  # the end of the handshake
        client.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        writer.write(outgoing.read())
        answer = b""
        with suppress(ConnectionError, ssl.SSLError):
            while not answer and (data := await reader.read(65536)):
                incoming.write(data)
                with suppress(ssl.SSLWantReadError):
                    answer = client.read()
        assert answer == b""


async def test_an_address_that_is_taken_is_said_and_waited_for() -> None:
    served = Served(None)
    with port_kept_free() as served.listener.port:
        taken = socket.create_server(("127.0.0.1", served.listener.port))
        async with running(served):
            assert "metrics.listen" in str(served.reported[0])
            await asyncio.sleep(0.1)
            assert len(served.reported) == 1
            taken.close()
            await until(lambda: served.reported[-1] is None)
            assert await served.status() == 200


async def test_a_scrape_is_the_text() -> None:
    async with api() as served:
        asked = served.session.get(
            f"{served.base}/metrics", headers={"Accept-Encoding": "identity"}
        )
        async with asked as answer:
            assert await answer.read() == SCRAPED
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "Content-Encoding" not in answer.headers


ENCODINGS: tuple[tuple[str, bool], ...] = (
    ("gzip", True),
    ("deflate, gzip;q=0.5", True),
    ("*", True),
    ("GZIP ; q=1.0", True),
    ("gzip;q=0, *;q=1", False),
    ("gzip; q=0.00", False),
    ("br", False),
    ("", False),
)


async def test_gzip_where_it_is_accepted() -> None:
    async with api() as served:
        for accepted, zipped in ENCODINGS:
            raw = await _raw(served.base, f"Accept-Encoding: {accepted}\r\n")
            head, _, body = raw.partition(b"\r\n\r\n")
            assert (b"Content-Encoding: gzip" in head) is zipped, accepted
            assert (gzip.decompress(body) if zipped else body) == SCRAPED, accepted


async def test_head_has_no_body() -> None:
    async with api() as served, served.session.head(f"{served.base}/metrics") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.virtual_time
async def test_a_client_that_hardly_reads_harms_no_other() -> None:
    clock = asyncio.get_running_loop().time
    async with (
        api(limits=RequestLimits(scrape=0.5, scrapes=3)) as served,
        AsyncExitStack() as stack,
    ):
        began = clock()
        for _ in range(2):
            await _slow(served.base, stack)
        assert await _status(served, "/metrics") == 200
        await _slow(served.base, stack)
        assert await _status(served, "/metrics") == 503
        assert await _status(served, "/healthz") == 200
        assert clock() - began < 0.45  # no client was cut off yet
        while await _status(served, "/metrics") == 503:
            assert clock() - began < 5
            await asyncio.sleep(0.05)


@pytest.mark.virtual_time
async def test_clients_that_hardly_read_make_way() -> None:
    clock = asyncio.get_running_loop().time
    async with (
        api(limits=RequestLimits(scrape_undisturbed=0.2)) as served,
        AsyncExitStack() as stack,
    ):
        for _ in range(40):
            await _slow(served.base, stack)
        began = clock()
        while await _status(served, "/metrics") == 503:
            assert clock() - began < 5
            await asyncio.sleep(0.02)
        assert await _status(served, "/metrics") == 200


async def _status(served: Api, path: str) -> int:
    async with served.session.get(served.base + path) as answer:
        await answer.read()
        return answer.status


async def _slow(base: str, stack: AsyncExitStack) -> None:
    """A connection that has asked and got the first bytes, and takes no more."""
    host, _, port = base.removeprefix("http://").partition(":")
    loop, own = asyncio.get_running_loop(), stack.enter_context(socket.socket())
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.setblocking(False)
    await loop.sock_connect(own, (host, int(port)))
    await loop.sock_sendall(own, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await loop.sock_recv(own, 10)


async def _raw(base: str, header: str) -> bytes:
    host, _, port = base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n".encode()
    )
    try:
        return await reader.read()
    finally:
        writer.close()
