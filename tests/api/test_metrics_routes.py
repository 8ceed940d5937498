"""A scrape: bytes that are there already, compressed where that is accepted, sent to anybody."""

from __future__ import annotations

import asyncio
import gzip
import socket
from contextlib import AsyncExitStack

import pytest

from nodeagent.api.limits import RequestLimits
from tests.api.serving import SCRAPED, Api, api


async def test_a_scrape_is_the_text() -> None:
    """Without a word about encodings it comes as it is, in Prometheus' format."""
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
    """The header's words decide, weights of 0 among them; the text is the same."""
    async with api() as served:
        for accepted, zipped in ENCODINGS:
            raw = await _raw(served.base, f"Accept-Encoding: {accepted}\r\n")
            head, _, body = raw.partition(b"\r\n\r\n")
            assert (b"Content-Encoding: gzip" in head) is zipped, accepted
            assert (gzip.decompress(body) if zipped else body) == SCRAPED, accepted


async def test_head_has_no_body() -> None:
    """HEAD says how long it would be, and sends nothing."""
    async with api() as served, served.session.head(f"{served.base}/metrics") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.virtual_time
async def test_a_client_that_hardly_reads_harms_no_other() -> None:
    """It holds up no other scrape, only so many of its kind get in, and soon it is cut off."""
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
    """Forty of them at once keep no other out for long: the one that had most time is cut off."""
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
