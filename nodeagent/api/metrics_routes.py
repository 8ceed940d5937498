"""What programs that watch the node ask again and again: metrics, and the health paths.

They are served by the API, and alone by a listener of their own. A scrape is rendered from what was
read already, and sent in pieces, so that a client that hardly reads holds little and not for long,
and makes way where others wait.
"""

import asyncio
import socket
from contextlib import suppress

from aiohttp import web

from nodeagent.api.answers import Answers
from nodeagent.api.connection import count_refused
from nodeagent.api.limits import Reason, RequestLimits
from nodeagent.metrics.exposition import CONTENT_TYPE

_PIECE = 64 * 1024  # bytes given to a connection at once
_KERNEL_HOLDS = 128 * 1024  # bytes; by itself the kernel would take a whole text from us


def metrics_routes(answers: Answers, limits: RequestLimits) -> list[web.RouteDef]:
    """The paths that both listeners have."""
    routes = _MetricsRoutes(answers, limits)
    return [
        web.get("/metrics", routes.metrics),
        web.get("/healthz", routes.healthz),
        web.get("/readyz", routes.readyz),
    ]


class _MetricsRoutes:
    """One method for each path."""

    def __init__(self, answers: Answers, limits: RequestLimits) -> None:
        self._answers = answers
        self._limits = limits
        # By identity, with when each began; the oldest comes first.
        self._scrapes: dict[int, tuple[web.Request, float]] = {}

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        now = asyncio.get_running_loop().time()
        full = len(self._scrapes) >= self._limits.scrapes
        if full and not self._end_oldest(now - self._limits.scrape_undisturbed):
            count_refused(request, Reason.BUSY)
            raise web.HTTPServiceUnavailable(text="too many scrapes are under way")
        self._scrapes[id(request)] = request, now
        try:
            async with asyncio.timeout(self._limits.scrape):
                return await self._scrape(request)
        except TimeoutError:
            _abort(request)
            return web.Response()  # the client is gone
        except ConnectionResetError:
            return web.Response()
        finally:
            self._scrapes.pop(id(request), None)

    def _end_oldest(self, begun_before: float) -> bool:
        """Cut off the client that has been at it for longest, if that is long enough."""
        request, began = next(iter(self._scrapes.values()))
        if began > begun_before:
            return False
        del self._scrapes[id(request)]
        count_refused(request, Reason.SLOW)
        _abort(request)
        return True

    async def _scrape(self, request: web.Request) -> web.StreamResponse:
        zipped = _accepts_gzip(request.headers.get("Accept-Encoding", ""))
        text = self._answers.scrape(zipped)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        if zipped:
            response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        response.content_length = len(text)
        _bound(request.transport)
        await response.prepare(request)
        if request.method != "HEAD":
            view = memoryview(text)
            for begin in range(0, len(text), _PIECE):
                await response.write(view[begin : begin + _PIECE])
            await response.write_eof()
        return response

    async def healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._answers.not_alive())

    async def readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._answers.not_ready())


def _abort(request: web.Request) -> None:
    """End the connection, or what is not sent yet would be kept for the client."""
    if request.transport:
        request.transport.abort()


def _bound(transport: asyncio.BaseTransport | None) -> None:
    """Let the kernel keep little for this connection, so that it is noticed who does not read."""
    own = transport.get_extra_info("socket") if transport else None
    if own is not None:
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_HOLDS)


def _accepts_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip; weights count only where they are 0."""
    weights: dict[str, bool] = {}
    for part in accepted.casefold().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = weight.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return weights.get("gzip", weights.get("*", False))


def _verdict(reasons: tuple[str, ...]) -> web.Response:
    if reasons:
        return web.json_response({"status": "unavailable", "reasons": list(reasons)}, status=503)
    return web.json_response({"status": "ok"})
