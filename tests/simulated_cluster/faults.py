"""What can go wrong between a client and the API server, ordered for requests to come.

`faults.next(2, Answer(503))` spoils the next two requests, `verb`, `path` (a pattern as in file
names) and `watch` narrow which. `faults.strike(Reset())` hits the watches that are open now.
"""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, assert_never

from aiohttp import web

from tests.simulated_cluster.refusals import Refused

PAGE = "<html>\n<head><title>502 Bad Gateway</title></head>\n<body>nginx</body>\n</html>\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A Status object of this code, with Retry-After (seconds) where given."""

    code: int
    retry_after: int | None = None
    message: str = "as ordered by the test"


@dataclass(frozen=True, slots=True)
class Html:
    """A proxy's error page, which is no JSON; `text` may be anything else that is none."""

    code: int = 502
    text: str = PAGE


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST) without an answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer ends in the middle of a line: `clean` as if it were complete, else broken off."""

    clean: bool = False


@dataclass(frozen=True, slots=True)
class Freeze:
    """The request is taken and no byte is sent, until `faults.thaw()` or the client goes."""


@dataclass(frozen=True, slots=True)
class Slow:
    """The answer, or on an open watch whatever comes next, starts so many seconds late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Dribble:
    """The answer comes in pieces, over so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """A watch is answered with 200, then an ERROR event of this code, then the end."""

    code: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A watch ends cleanly, before its time."""


Fault: TypeAlias = Answer | Html | Reset | Cut | Freeze | Slow | Dribble | ErrorEvent | End


@dataclass(slots=True)
class _Order:
    left: int
    fault: Fault
    verb: str | None
    path: str | None
    watch: bool | None

    def concerns(self, verb: str, path: str, watch: bool) -> bool:
        return (
            self.left > 0
            and self.verb in {None, verb}
            and (self.path is None or fnmatchcase(path, self.path))
            and self.watch in {None, watch}
        )


@dataclass(slots=True)
class Faults:
    """The faults that are ordered, and the open watches that they can strike."""

    struck: int = 0  # how many requests and watches got a fault so far
    _orders: list[_Order] = field(default_factory=list)
    watching: set[asyncio.Queue[Any]] = field(default_factory=set)  # one for each open watch
    _thawed: asyncio.Event = field(default_factory=asyncio.Event)

    def next(
        self,
        count: int,
        fault: Fault,
        *,
        verb: str | None = None,
        path: str | None = None,
        watch: bool | None = None,
    ) -> None:
        """Spoil the next `count` requests that match; earlier orders go first."""
        self._orders.append(_Order(count, fault, verb, path, watch))

    def strike(self, fault: Fault) -> int:
        """Spoil every watch that is open now; how many those are."""
        for queue in self.watching:
            queue.put_nowait(fault)
        self.struck += len(self.watching)
        return len(self.watching)

    def thaw(self) -> None:
        self._thawed.set()
        self._thawed = asyncio.Event()

    def clear(self) -> None:
        """Forget what is ordered and let go of what is frozen."""
        self._orders.clear()
        self.thaw()

    # --- for the server -------------------------------------------------------------------------

    def take(self, verb: str, path: str, *, watch: bool) -> Fault | None:
        """The fault that this request gets, if any."""
        for order in self._orders:
            if order.concerns(verb, path, watch):
                order.left -= 1
                self.struck += 1
                return order.fault
        return None

    async def frozen(self) -> None:
        await self._thawed.wait()


async def spoil(request: web.Request, fault: Fault, faults: Faults) -> web.StreamResponse | None:
    """Answer an ordinary request, or a watch's start, as the fault says.

    None means that the request is to be answered after all (late).
    """
    match fault:
        case Answer(code, retry_after, message):
            headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
            raise Refused(code, message, headers=headers)
        case Html(code, text):
            return web.Response(status=code, text=text, content_type="text/html")
        case Reset():
            reset(request)
            return web.Response()  # has nowhere to go
        case Freeze():
            await faults.frozen()
        case Slow(seconds):
            await asyncio.sleep(seconds)
        case Cut() | Dribble() | ErrorEvent() | End():
            return await _spoilt_body(request, fault)
        case _:
            assert_never(fault)
    return None


async def _spoilt_body(
    request: web.Request, fault: Cut | Dribble | ErrorEvent | End
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    match fault:
        case Cut(clean):
            await break_off(request, response, clean=clean)
            return response
        case Dribble(seconds):
            for _ in range(10):
                await response.write(b" ")
                await asyncio.sleep(seconds / 10)
            await response.write(b"{}")
        case ErrorEvent():
            await response.write(error_event(fault))
        case End():
            pass
        case _:
            assert_never(fault)
    await response.write_eof()
    return response


def error_event(fault: ErrorEvent) -> bytes:
    refused = Refused(fault.code, "as ordered by the test", reason=fault.reason)
    return json.dumps({"type": "ERROR", "object": refused.status()}).encode() + b"\n"


def reset(request: web.Request) -> None:
    """End the connection with a RST, whatever was sent before."""
    transport = request.transport
    if transport is None:
        return
    # A linger time of zero seconds makes the kernel send a reset.
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def break_off(request: web.Request, response: web.StreamResponse, *, clean: bool) -> None:
    """Send half a line, then end the answer as if it were whole, or without its end."""
    await response.write(b'{"type":"MODIFIED","object":{"kind":"Node","apiVe')
    if clean:
        await response.write_eof()
    elif request.transport is not None:
        await asyncio.sleep(0)
        request.transport.close()
