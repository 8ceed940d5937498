"""Sends requests to the API server and translates how they fail.

Tokens are rotated and certificates replaced while the agent runs: credentials are read again
before a request once a minute, and at once when the server does not accept them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Literal

import aiohttp
from kubernetes.aio import client

from nodeagent import __version__
from nodeagent.cluster.client import faults
from nodeagent.cluster.client.credentials import Credentials, Identity, read_identity
from nodeagent.cluster.client.faults import ClusterFault, CredentialsUnusable
from nodeagent.strict_json import parse_json

# All in seconds, see tcp(7). A probe after 15 s of silence and every 10 s from then on; with
# TCP_USER_TIMEOUT set, the first probe due after that time ends the connection: at 35 s.
_IDLE: Final = 15
_INTERVAL: Final = 10
_PROBES: Final = 3
_UNANSWERED: Final = 30

# Below the API server's own 90 s, so that a connection is not closed while a request is sent on it.
# aiohttp's 15 s would cost most writes a TCP and a TLS handshake.
_KEPT: Final = 75.0


def connector(tls: ssl.SSLContext) -> aiohttp.TCPConnector:
    """The pool of connections to one server; to be made in the event loop, closed by its user."""
    return aiohttp.TCPConnector(ssl=tls, socket_factory=_socket, keepalive_timeout=_KEPT)


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


JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `purpose` describes it in a few words.

    `path` may hold `{name}`s, whose values in `names` are escaped. `longer` is how many seconds
    the whole answer may take beyond the time in which it must begin.
    """

    purpose: str
    method: Literal["GET", "PATCH", "POST", "DELETE"]
    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"
    longer: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    identity: Identity
    api: client.ApiClient
    connections: aiohttp.TCPConnector

    async def close(self) -> None:
        """End all requests, a running watch too."""
        await self.api.close()
        await self.connections.close()


class _Untrusted(Exception):
    """TLS failed; the fault that this is if nothing helps."""

    def __init__(self, fault: ClusterFault) -> None:
        super().__init__()
        self.fault = fault


class Connection:
    """The way to one API server. Nothing is read or sent before the first request.

    `answer_within` bounds how long an answer takes to begin and, unless the request sets
    another time, to end; `reread_every` is how old credentials may get. Both are seconds.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        answer_within: float,
        reread_every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._answer_within = answer_within
        self._reread_every = reread_every
        self._clock = clock
        self._rereading = asyncio.Lock()
        self._session: _Session | None = None
        self._read_at = 0.0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def server(self) -> str:
        """The server's address for people."""
        return self._session.identity.server if self._session else "the API server"

    async def json(self, request: Request) -> JsonObject:
        """Send it and read the object that is answered; raises `ClusterFault`."""
        response = await self.answered(request)
        try:
            answer = parse_json(await self._read(request, response))
        except ValueError as error:
            raise faults.strange_answer(request.purpose, "it is not JSON") from error
        if not isinstance(answer, dict):
            raise faults.strange_answer(request.purpose, "it is not an object")
        return answer

    async def answered(self, request: Request) -> aiohttp.ClientResponse:
        """Send it; the answer's beginning, once its status is good. Raises `ClusterFault`."""
        session = self._session
        if session is None or self._clock() - self._read_at >= self._reread_every:
            session = await self._reread(session)
        try:
            response = await self._sent(session, request)
        except _Untrusted as error:
            response = await self._sent_anew(session, request, error.fault)
        if response.status == HTTPStatus.UNAUTHORIZED:
            fault = await self._fault(request, response)
            response = await self._sent_anew(session, request, fault)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise await self._fault(request, response)
        return response

    # --- sending ----------------------------------------------------------------------------------

    async def _sent_anew(
        self, session: _Session, request: Request, fault: ClusterFault
    ) -> aiohttp.ClientResponse:
        """Once more with new credentials; where there are none, the fault stands."""
        renewed = await self._reread(session)
        if renewed is session:
            raise fault
        try:
            return await self._sent(renewed, request)
        except _Untrusted as error:
            raise error.fault from error

    async def _sent(self, session: _Session, request: Request) -> aiohttp.ClientResponse:
        """Raises `_Untrusted` where new certificates may help."""
        try:
            async with asyncio.timeout(self._answer_within):
                return await _send(
                    session.api, request, seconds=self._answer_within + request.longer
                )
        except aiohttp.ClientSSLError as error:
            raise _Untrusted(self._error(request, error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._error(request, error) from error
        except RuntimeError as error:
            if session is self._session:
                raise
            # Another request brought new certificates, and the old session was closed.
            raise self._error(request, error) from error

    async def _fault(self, request: Request, response: aiohttp.ClientResponse) -> ClusterFault:
        body = await self._read(request, response)
        fault = faults.from_status(
            response.status, body, purpose=request.purpose, headers=response.headers
        )
        fault.status = response.status
        return fault

    async def _read(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with asyncio.timeout(self._answer_within):
                return await response.read()
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
        async with self._rereading:
            if self._session is not None and self._session is not before:
                return self._session  # another request did it meanwhile
            try:
                # Files are read and, for a TLS context, 20 ms are spent: not in the loop.
                identity, api = await asyncio.to_thread(_build, self._credentials, before)
            except CredentialsUnusable:
                if before is None:
                    raise
                self._read_at = self._clock()
                return before
            self._read_at = self._clock()
            if before is not None and before.identity == identity:
                return before
            return await self._take(before, identity, api)

    async def _take(
        self, before: _Session | None, identity: Identity, api: client.ApiClient
    ) -> _Session:
        if before is not None and api is before.api:
            before.api.configuration.api_key = identity.configuration.api_key
            self._session = replace(before, identity=identity)
            return self._session
        connections = connector(api.rest_client.ssl_context)
        api.configuration.client_session_kwargs = {"connector": connections}
        self._session = _Session(identity, api, connections)
        if before is not None:
            await before.close()  # cuts a running watch, which starts anew
        return self._session


async def _send(
    api: client.ApiClient, request: Request, *, seconds: float
) -> aiohttp.ClientResponse:
    """By the library's general calls: those named after resources load 250 models, 25 MB."""
    serialized = await api.param_serialize(
        method=request.method,
        resource_path=request.path,
        path_params=dict(request.names),
        query_params=list(request.query.items()),
        header_params={"Accept": "application/json", "Content-Type": request.content_type},
        body=request.body,
        auth_settings=["BearerToken"],
    )
    answer = await api.call_api(*serialized, _preload_content=False, _request_timeout=seconds)
    response: aiohttp.ClientResponse = answer.response
    return response


def _build(credentials: Credentials, before: _Session | None) -> tuple[Identity, client.ApiClient]:
    """Who we are now, and a client for it: the one there is if it will do."""
    identity = read_identity(credentials)
    if before is not None and before.identity.connection == identity.connection:
        return identity, before.api
    try:
        api = client.ApiClient(identity.configuration)
    except OSError as error:  # SSLError is one
        raise CredentialsUnusable(
            f"the certificates for {identity.server} cannot be used"
        ) from error
    api.user_agent = f"nodeagent/{__version__}"
    return identity, api
