"""One connection of a listener: its slot, its deadlines, and the reply to malformed requests."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from contextlib import suppress
from functools import partial
from typing import Any, cast

from aiohttp import web

from nodeagent.api.limits import (
    ConnectionSlots,
    Reason,
    Refusals,
    RequestLimits,
    RequestSlot,
    peer_of,
)

_MAX_LINE = 4096  # bytes of a request line or a header
_LINGER = 1.0  # seconds for a client to read why its connection ends
_BACKLOG = 128


class Connection(web.RequestHandler):
    """aiohttp's protocol with a deadline for a whole request and for taking the answer.

    Over a Unix socket only root and the agent's own user are served, whatever the file's mode.
    """

    def __init__(self, serving: Serving, transport: asyncio.Transport, slot: RequestSlot) -> None:
        super().__init__(
            cast("web.Server", serving.runner.server),  # which `start` has made
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp documents None: no access log
            keepalive_timeout=serving.limits.idle,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            lingering_time=_LINGER,
            auto_decompress=False,
        )
        self._serving = serving
        self._own = transport
        self._slot = slot
        self._deadline: asyncio.TimerHandle | None = None
        self._barred = False
        self._begun = False  # whether a request has begun to arrive since the last one

    # --- asyncio's protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not _may_use(self._own):
            self.force_close()
            self.refused(Reason.PEER)
            self._barred = True
            self._within(_LINGER)
            return
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._barred:  # answered only now, so that the client is not still sending
            self._reply(403, "this socket is for root and the agent's own user")
            return
        if self._slot.waiting and not self._begun:
            self._begun = True
            self._within(self._serving.limits.request)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.stop_deadline()
        self._serving.slots.leave(self._slot)
        super().connection_lost(exc)

    # --- deadlines of the client ------------------------------------------------------------------

    def stop_deadline(self) -> None:
        """Stop the deadline while the agent delays its answer; the connection still makes way."""
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def restart_deadline(self) -> None:
        """Start it for the rest of the request, if `stop_deadline` ended it."""
        if self._deadline is None:
            self._within(self._serving.limits.request)

    def whole(self) -> None:
        """The whole request has arrived: from now on the client waits for the agent."""
        self.stop_deadline()
        self._slot.waiting = False

    def _wait(self) -> None:
        """The agent waits for the client: to take an answer, and for a request to begin."""
        self._begun = False
        self._serving.slots.waits(self._slot)
        self._within(self._serving.limits.idle)

    def _within(self, seconds: float) -> None:
        self.stop_deadline()
        self._deadline = self._loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._own.is_closing():
            return
        if self._begun:
            self.refused(Reason.SLOW)
            self._reply(408, "the request did not arrive in time")
        elif self._own.get_write_buffer_size():
            self.refused(Reason.SLOW)
            self._own.abort()
        else:
            self._own.close()

    def _reply(self, status: int, error: str) -> None:
        """Answer in the place of aiohttp, and end the connection."""
        body = web.json_response({"error": error}, status=status)
        text = body.body if isinstance(body.body, bytes) else b""
        head = f"HTTP/1.1 {status} {body.reason}\r\nContent-Type: application/json\r\n"
        self._own.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode())
        self._own.write(text)
        self._own.close()
        self._loop.call_later(_LINGER, self._own.abort)  # nothing happens where it is closed

    # --- aiohttp's protocol -----------------------------------------------------------------------

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        self._wait()
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request (400); aiohttp's own logs a traceback for each.

        Before any handler it repeats what a client expects, which may be what no answer can hold.
        """
        strange = isinstance(exc, UnicodeEncodeError) and "Expect" in request.headers
        if status != 400 and not strange:
            return super().handle_error(request, status, exc, message)
        self.refused(Reason.MALFORMED, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is sent already")
        answer = web.json_response({"error": "this is not a request of HTTP/1.1"}, status=400)
        answer.force_close()
        return answer

    def refused(self, reason: Reason, error: str = "") -> None:
        self._serving.refused(reason, self._slot.peer, error)


class Entrance(asyncio.Protocol):
    """A connection until it is served: it gets its slot, and with a `context` agrees on TLS.

    asyncio's own servers count no connection before that, and give it a minute.
    """

    def __init__(self, serving: Serving, context: ssl.SSLContext | None) -> None:
        self._serving = serving
        self._context = context
        self._early: list[bytes] = []  # what came in one piece with the end of the handshake
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = cast("asyncio.Transport", transport)
        peer = peer_of(own.get_extra_info("peername"))
        slot, lost = self._serving.slots.enter(peer, own.abort)
        if slot is None or lost is not None:
            self._serving.refused(Reason.CONNECTIONS, peer)
        if slot is None:
            own.abort()
        elif self._context is None:
            self._serve(own, slot)
        else:
            own.pause_reading()
            securing = self._secure(own, slot, self._context)
            self._task = asyncio.create_task(securing, name="TLS handshake")

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    async def _secure(
        self, own: asyncio.Transport, slot: RequestSlot, context: ssl.SSLContext
    ) -> None:
        secured: asyncio.Transport | None = None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                own,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._serving.limits.handshake,
                ssl_shutdown_timeout=_LINGER,
            )
        except OSError as error:
            if slot in self._serving.slots:  # else it was ended for another
                self._serving.refused(Reason.HANDSHAKE, slot.peer, type(error).__name__)
            # Its frames refer to it: they would keep the buffers until garbage is collected.
            error.__traceback__ = None
        finally:
            # Closed during the handshake: a newer configuration, perhaps with passwords, is served
            if secured is None or secured.is_closing() or self._serving.slots.closed:
                self._serving.slots.leave(slot)
                (secured or own).abort()
                secured = None
        if secured is not None:
            self._serve(secured, slot)

    def _serve(self, transport: asyncio.Transport, slot: RequestSlot) -> None:
        slot.end = transport.abort
        connection = Connection(self._serving, transport, slot)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)


class Serving:
    """An application on sockets that listen, within `limits`; `name` is its label in metrics."""

    def __init__(
        self, app: web.Application, name: str, limits: RequestLimits, refusals: Refusals
    ) -> None:
        self.limits = limits
        self.slots = ConnectionSlots(limits.connections, limits.connections_of_peer)
        self._name = name
        self._refusals = refusals
        refusals.begin(name)
        self._servers: list[asyncio.Server] = []
        self.runner = web.AppRunner(
            app,
            handle_signals=False,
            handler_cancellation=True,  # a follower of the events that left is forgotten at once
            shutdown_timeout=_LINGER,
        )

    async def start(self, *, context: ssl.SSLContext | None = None, **where: Any) -> None:
        """Listen; `where` is what asyncio's `create_server` takes. Raises OSError."""
        if self.runner.server is None:
            await self.runner.setup()
        loop, enter = asyncio.get_running_loop(), partial(Entrance, self, context)
        backlog = min(_BACKLOG, self.limits.connections)  # asyncio accepts so many at once
        self._servers.append(await loop.create_server(enter, backlog=backlog, **where))

    def refused(self, reason: Reason, peer: str, error: str = "") -> None:
        self._refusals.add(self._name, reason, peer=peer, error=error)

    @property
    def port(self) -> int:
        names = (own.getsockname() for server in self._servers for own in server.sockets)
        return next((int(name[1]) for name in names if isinstance(name, tuple)), 0)

    async def end(self) -> None:
        """Take no more connections, finish the answers under way for a second, close the rest."""
        self.slots.closed = True
        for server in self._servers:
            server.close()
        await self.runner.cleanup()


@web.middleware
async def read_whole_request(request: web.Request, handler: Any) -> web.StreamResponse:
    """Read the body before anything is answered, so that its deadline holds for every path."""
    connection = request.protocol if isinstance(request.protocol, Connection) else None
    if request.can_read_body:
        if connection:
            connection.restart_deadline()
        await request.read()
    if connection:
        connection.whole()
    return cast("web.StreamResponse", await handler(request))


def count_refused(request: web.BaseRequest, reason: Reason) -> None:
    """Count that this request was refused."""
    if isinstance(request.protocol, Connection):
        request.protocol.refused(reason)


def _may_use(transport: asyncio.Transport) -> bool:
    """Whether the user at the other end of a Unix socket is root or the agent's own."""
    own = transport.get_extra_info("socket")
    if own is None or own.family != socket.AF_UNIX:
        return True
    with suppress(OSError):
        credentials = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", credentials)[1] in {0, os.geteuid()}
    return False
