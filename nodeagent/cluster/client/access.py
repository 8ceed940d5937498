"""Sends requests to the API server, with a deadline, and translates how they fail.

Tokens are rotated and certificates replaced while the agent runs: credentials are read again
before a request once a minute, and at once when the server does not accept them.
"""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Final, Generic, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from msgspec import Raw
from msgspec.json import Decoder

from nodeagent import __version__
from nodeagent.cluster.client import faults
from nodeagent.cluster.client.credentials import Credentials, Endpoint, read_endpoint, tls_context
from nodeagent.cluster.client.faults import ClusterFault, CredentialsUnusable, NotAuthenticated
from nodeagent.cluster.client.requests import JsonObject, Request
from nodeagent.own_thread import OwnThread
from nodeagent.structs import Struct, read_in_threads, replace

Made = TypeVar("Made")
Read = Callable[[bytes], Made]
"""Decodes one object; raises ValueError."""

# All in seconds, see tcp(7). A probe after 15 s of silence and every 10 s from then on; with
# TCP_USER_TIMEOUT set, the first probe due after that time ends the connection: at 35 s.
_IDLE: Final = 15
_INTERVAL: Final = 10
_PROBES: Final = 3
_UNANSWERED: Final = 30

_AT_ONCE: Final = 64 << 10  # bytes that are parsed in the event loop

# Below the API server's own 90 s, so that a connection is not closed while a request is sent on it.
# aiohttp's 15 s would cost most writes a TCP and a TLS handshake.
_KEPT: Final = 75.0


class Listed(Struct, Generic[Made], frozen=True):
    """The objects that a list holds, and the version to watch from."""

    items: tuple[Made, ...]
    version: str

    @property
    def first(self) -> Made | None:
        """The only one of a list by name; None where there is none of that name."""
        return self.items[0] if self.items else None


class _ListMetadata(Struct, rename="camel"):
    resource_version: str


@read_in_threads
class _ObjectList(Struct):
    metadata: _ListMetadata
    items: list[Raw] | None = None


_OBJECT_LIST: Final = Decoder(_ObjectList)
_OBJECT: Final = Decoder(JsonObject)


def read_object(text: bytes) -> JsonObject:
    """Any object; raises ValueError."""
    return _OBJECT.decode(text)


def _list_of(text: bytes, read: Read[Made]) -> Listed[Made]:
    found = _OBJECT_LIST.decode(text)
    items = tuple(read(bytes(item)) for item in found.items or ())
    return Listed(items, found.metadata.resource_version)


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    endpoint: Endpoint
    http: aiohttp.ClientSession


@dataclass(slots=True, eq=False, repr=False)
class ClusterAccess:
    """One API server. Enter it as a context manager; nothing is read or sent before the first use.

    Every request raises a `ClusterFault` and nothing else. `answer_within` bounds how long an
    answer takes to begin and, unless the request sets another time, to end; `reread_every` is how
    old the credentials may get (both in seconds). An answer has at most `largest` bytes: the pods
    of a node are as large as those who make them like.
    """

    credentials: Credentials
    _: KW_ONLY
    answer_within: float = 15.0
    reread_every: float = 60.0
    largest: int = 16 << 20
    clock: Callable[[], float] = time.monotonic
    _rereading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _session: _Session | None = field(default=None, init=False)
    _read_at: float = field(default=0.0, init=False)
    _unread: CredentialsUnusable | None = field(default=None, init=False)  # at the last look
    _reading: asyncio.Future[Endpoint] | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._session is not None:
            await self._session.http.close()

    @property
    def server(self) -> str:
        """The server's address for people."""
        return self._session.endpoint.server if self._session else "the API server"

    # --- the verbs --------------------------------------------------------------------------------

    async def send(self, request: Request) -> None:
        await self.ask(request, read_object)

    async def ask(self, request: Request, read: Read[Made]) -> Made:
        """What `read` makes of the answer; in a thread where that takes more than milliseconds."""
        response = await self._answered(request)
        text = await self._read(request, response)
        try:
            if len(text) <= _AT_ONCE:
                return read(text)
            return await asyncio.to_thread(read, text)
        except (ValueError, RecursionError) as error:
            raise faults.strange_answer(request.purpose, str(error)) from error

    async def find(self, request: Request, read: Read[Made]) -> Made | None:
        """One object; None when the API server says that there is none of this name."""
        try:
            return await self.ask(request, read)
        except faults.ObjectMissing as fault:
            if fault.is_named:
                return None
            raise

    async def listed(self, request: Request, read: Read[Made]) -> Listed[Made]:
        """What `read` makes of each object. All of a long list take hundreds of milliseconds."""
        return await self.ask(request, lambda text: _list_of(text, read))

    @asynccontextmanager
    async def watch(self, request: Request) -> AsyncIterator[aiohttp.StreamReader]:
        """The answer to a watch, a line for each event as it comes."""
        response = await self._answered(request)
        try:
            if response.content_type != "application/json":
                raise faults.strange_answer(request.purpose, "it is not JSON")
            yield response.content
        finally:
            response.close()  # not released: what is left of a watch is never worth reading

    async def next_line(
        self, request: Request, stream: aiohttp.StreamReader, *, silence: float
    ) -> bytes:
        """The next line of a watch; empty when the server ends it, or nothing comes for so many
        seconds. Raises `ConnectionCut`.
        """
        waiting = asyncio.timeout(silence)
        try:
            async with waiting:
                return await stream.readline()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if waiting.expired():
                return b""
            raise self._error(request, error, cut=True) from error

    # --- sending ----------------------------------------------------------------------------------

    async def _answered(self, request: Request) -> aiohttp.ClientResponse:
        """The answer's beginning, once its status is good."""
        session = self._session
        if session is None or self.clock() - self._read_at >= self.reread_every:
            session = await self._reread(session)
        try:
            return await self._sent(session, request)
        except ClusterFault as fault:
            untrusted = isinstance(fault.__cause__, aiohttp.ClientSSLError)
            if not (untrusted or isinstance(fault, NotAuthenticated)):
                raise
            renewed = await self._reread(session)
            if renewed is session:
                if why := self._unread:  # what was read before is good no more
                    fault.message, fault.remedy = f"{fault.message}; {why.message}", why.remedy
                raise
        return await self._sent(renewed, request)

    async def _sent(self, session: _Session, request: Request) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(self.answer_within):
                response = await _send(
                    session, request, seconds=self.answer_within + request.longer
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._error(request, error) from error
        except RuntimeError as error:
            if not session.http.closed:
                raise
            # Another request brought new certificates, or the agent ends.
            raise self._error(request, error) from error
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            fault = faults.from_status(
                response.status,
                await self._read(request, response),
                purpose=request.purpose,
                headers=response.headers,
            )
            if isinstance(fault, NotAuthenticated):
                fault.remedy = session.endpoint.renewal
            raise fault
        return response

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with asyncio.timeout(self.answer_within):
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > self.largest:
                        response.close()
                        raise faults.too_large(request.purpose, self.largest)
                return bytes(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._error(request, error, cut=True) from error
        finally:
            response.release()

    def _error(self, request: Request, error: Exception, *, cut: bool = False) -> ClusterFault:
        return faults.from_error(error, purpose=request.purpose, server=self.server, cut=cut)

    # --- who we are -------------------------------------------------------------------------------

    async def _reread(self, before: _Session | None) -> _Session:
        """What is to be used instead of `before`; that itself where nothing is new.

        What cannot be read stays as it was: a file may be missing while it is replaced.
        """
        try:
            endpoint = await self._read_endpoint()
            self._unread = None
            async with self._rereading:
                if self._session is not None and self._session is not before:
                    return self._session  # another request did it meanwhile
                if before is None or endpoint != before.endpoint:
                    tls = await asyncio.to_thread(tls_context, endpoint)  # takes 20 ms
                    session = _Session(endpoint, _client(tls))
                elif endpoint.authorization != before.endpoint.authorization:
                    session = replace(before, endpoint=endpoint)
                else:
                    session = before
                self._read_at, self._session = self.clock(), session
                if before is not None and session.http is not before.http:
                    await before.http.close()  # cuts a running watch, which starts anew
                return session
        except CredentialsUnusable as error:
            if before is None:
                raise
            self._unread = error
            self._read_at = self.clock()
            return self._session or before

    async def _read_endpoint(self) -> Endpoint:
        """Read it in a thread, one at a time: a program that a kubeconfig names may hang, and no
        other is started before it ends. Nor does the agent's end wait for it.
        """
        if self._reading is None:
            loop, thread = asyncio.get_running_loop(), OwnThread("credentials")
            self._reading = loop.run_in_executor(thread, read_endpoint, self.credentials)
        reading = self._reading
        await asyncio.wait((reading,), timeout=self.answer_within)
        if not reading.done():
            raise CredentialsUnusable.of("credentialsLate", seconds=f"{self.answer_within:g}")
        if self._reading is reading:
            self._reading = None
        return reading.result()


async def _send(session: _Session, request: Request, *, seconds: float) -> aiohttp.ClientResponse:
    endpoint = session.endpoint
    headers = {
        "Accept": "application/json",
        "Content-Type": request.content_type,
        "User-Agent": f"nodeagent/{__version__}",
    }
    if endpoint.authorization:
        headers["Authorization"] = endpoint.authorization
    query = f"?{urlencode(request.query, quote_via=quote)}" if request.query else ""
    return await session.http.request(
        request.method,
        f"{endpoint.url}{request.path}{query}",
        headers=headers,
        data=None if request.body is None else json.dumps(request.body),
        timeout=aiohttp.ClientTimeout(total=seconds),
        proxy=endpoint.proxy,
        server_hostname=endpoint.tls_server_name,
    )


def _client(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Make a pool of connections to one server; call it in the event loop."""
    connections = aiohttp.TCPConnector(ssl=tls, socket_factory=_socket, keepalive_timeout=_KEPT)
    # A line of a watch, which is a Node or a pod, may be longer than aiohttp's buffer.
    return aiohttp.ClientSession(connector=connections, read_bufsize=1 << 21)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE),
        (socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, _UNANSWERED * 1000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
