"""What a client can ask, and, over the Unix socket alone, have done."""

import asyncio
import json
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from nodeagent.api.answers import Answers
from nodeagent.api.connection import count_refused, read_whole_request
from nodeagent.api.guard import (
    errors_as_json,
    only_over_unix_socket,
    refuse_foreign_hosts,
    set_headers,
)
from nodeagent.api.limits import Reason, RequestLimits
from nodeagent.api.metrics_routes import metrics_routes
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.api.page import CONTENT_SECURITY_POLICY, PAGE
from nodeagent.errors import UnknownDevice
from nodeagent.plan.plan import Verdict
from nodeagent.text import quote
from nodeagent.views.shapes import Json, as_json
from nodeagent.waiting import uncancelled

MAX_BODY = 64 * 1024  # bytes
_KEEPALIVE_INTERVAL = 15.0  # seconds between signs of life to those who follow the events

_REFUSED = frozenset({Verdict.INVALID, Verdict.UNSATISFIABLE})


def create_app(answers: Answers, *, listen_host: str, limits: RequestLimits) -> web.Application:
    """The whole API as an aiohttp application, for one listener."""
    app = web.Application(
        middlewares=[errors_as_json, refuse_foreign_hosts(listen_host), read_whole_request],
        client_max_size=MAX_BODY,
    )
    app.on_response_prepare.append(set_headers)
    routes = _Routes(answers, limits)
    app.add_routes(
        [
            web.get("/", routes.page),
            *metrics_routes(answers, limits),
            web.get("/v1/status", routes.status),
            web.get("/v1/history", routes.history),
            web.get("/v1/advice", routes.advice),
            web.get("/v1/plan", routes.plan),
            web.post("/v1/plan/preview", routes.preview),
            web.get("/v1/events", routes.events),
            web.get("/openapi.json", routes.openapi),
            web.get("/v1/mps", routes.mps),
            # Whatever changes something is bound to the Unix socket here and nowhere else.
            web.post("/v1/mps/restart", only_over_unix_socket(routes.restart_mps)),
            web.post("/v1/mps/drain", only_over_unix_socket(routes.drain_mps)),
        ]
    )
    return app


class _Routes:
    """One method for each path."""

    def __init__(self, answers: Answers, limits: RequestLimits) -> None:
        self._answers = answers
        self._limits = limits
        # One of each at a time: the agent's own work comes first.
        self._one_advice, self._one_preview = asyncio.Lock(), asyncio.Lock()
        self._previews = 0
        self._followers = 0

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(
            body=PAGE,
            content_type="text/html",
            charset="utf-8",
            headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY},
        )

    async def status(self, request: web.Request) -> web.Response:
        gpu = request.query.get("gpu")
        page = self._answers.status(gpu)
        if page is None:
            raise web.HTTPNotFound(text=f"this node has no GPU {gpu!r}")
        return web.Response(body=page, content_type="application/json", charset="utf-8")

    async def history(self, request: web.Request) -> web.Response:
        gpu = request.query.get("gpu")
        found = self._answers.history(gpu)
        if found is None:
            raise web.HTTPNotFound(text=f"nothing was read of a GPU {_shown(gpu)}")
        return web.json_response(found)

    async def advice(self, request: web.Request) -> web.Response:
        async with self._one_advice:
            found = await self._answers.advice(request.query.get("namespace"))
        return web.json_response(found)

    async def plan(self, _: web.Request) -> web.Response:
        return web.json_response(await self._answers.plan())

    async def preview(self, request: web.Request) -> web.Response:
        text = await request.read()
        if self._previews >= self._limits.previews:
            count_refused(request, Reason.BUSY)
            raise web.HTTPServiceUnavailable(text="too many previews at once")
        self._previews += 1
        # The thread goes on when its client has gone, and the next preview waits for its end.
        computing = self._compute(text, request.query.get("configuration"))
        found = await asyncio.shield(asyncio.create_task(computing, name="preview"))
        if found is None:
            raise web.HTTPServiceUnavailable(text="the GPUs have not been observed yet")
        is_document, report = found
        accepted = 422 if report["verdict"] in _REFUSED else 200
        return web.json_response(report, status=accepted if is_document else 400)

    async def _compute(self, text: bytes, configuration: str | None) -> tuple[bool, Json] | None:
        try:
            async with self._one_preview:
                return await asyncio.to_thread(self._answers.preview, text, configuration)
        finally:
            self._previews -= 1

    async def openapi(self, _: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION)

    async def events(self, request: web.Request) -> web.StreamResponse:
        if "text/event-stream" not in request.headers.get("Accept", ""):
            event_log, within = self._answers.events, _within(request)
            kept = event_log.events if within is None else event_log.of_last(within)
            return web.json_response([as_json(event) for event in kept])
        if self._followers >= self._limits.followers:
            count_refused(request, Reason.BUSY)
            raise web.HTTPServiceUnavailable(text="too many already follow the events")
        self._followers += 1
        try:
            return await self._follow(request)
        except ConnectionResetError:
            return web.Response()  # the client is gone
        finally:
            self._followers -= 1

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        after, within = _last_event_id(request), _within(request)
        with self._answers.events.following(after=after, within=within) as follower:
            await response.prepare(request)
            await self._send(request, response, ": following\n\n")
            while True:
                try:
                    async with asyncio.timeout(_KEEPALIVE_INTERVAL):
                        event = await follower.next()
                except TimeoutError:
                    await self._send(request, response, ": still there\n\n")
                    continue
                if event is None:
                    return response
                text = f"id: {event.id}\ndata: {json.dumps(as_json(event))}\n\n"
                await self._send(request, response, text)

    async def _send(self, request: web.Request, response: web.StreamResponse, text: str) -> None:
        """Send; a follower that does not read loses the connection."""
        try:
            async with asyncio.timeout(self._limits.follower_write):
                await response.write(text.encode())
        except TimeoutError:
            if request.transport:
                request.transport.abort()
            raise ConnectionResetError("the follower does not read") from None

    async def mps(self, request: web.Request) -> web.Response:
        device = request.query.get("device")
        report = self._answers.mps(device)
        if report is None:
            raise web.HTTPNotFound(text=f"this node has no device {_shown(device)}")
        return web.json_response(report)

    async def restart_mps(self, request: web.Request) -> web.Response:
        given = _read(await request.read(), _Restart)
        device = self._one_daemon(given.device)
        # What was begun is finished although the client disconnects.
        restart = self._answers.restart_mps(device, bool(given.force))
        return web.json_response(await uncancelled(restart))

    async def drain_mps(self, request: web.Request) -> web.Response:
        """A client that disconnects gives the drain up: else the device would take no clients
        without a visible reason.
        """
        given = _read(await request.read(), _Drain)
        device = self._one_daemon(given.device)
        drain = self._answers.drain_mps(device, given.timeout, bool(given.force))
        return web.json_response(await drain)

    def _one_daemon(self, device: str) -> str:
        """The UUID of the device meant; raises UnknownDevice unless it has exactly one daemon."""
        report = self._answers.mps(device)
        if report is None:
            raise UnknownDevice.of("noSuchDevice", device=_shown(device))
        daemons: list[Json] = report["daemons"]
        if not daemons:
            raise UnknownDevice.of("noDaemon", device=device)
        if len(daemons) > 1:
            first = daemons[0]["device"]
            raise UnknownDevice.of("severalDaemons", device=device, count=len(daemons), first=first)
        return str(daemons[0]["device"])


def _last_event_id(request: web.Request) -> int | None:
    given = request.headers.get("Last-Event-ID", request.query.get("after", ""))
    # A bounded length keeps the conversion cheap.
    return int(given) if given.isascii() and given.isdigit() and len(given) < 20 else None


def _within(request: web.Request) -> float | None:
    """The seconds for which past events are wanted; None: all that are kept."""
    given = request.query.get("within", "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise web.HTTPBadRequest(text=f"within is a whole number of seconds, not {quote(given)}")
    return float(given)


# --- requests -------------------------------------------------------------------------------------


class _Restart(Struct, forbid_unknown_fields=True):
    """The body of a request; an unknown key could change the meaning, and is refused."""

    device: Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{1,100}\Z")]
    force: bool | None = None


class _Drain(_Restart, forbid_unknown_fields=True):
    timeout: Annotated[float, Meta(ge=0)] | None = None


_Request = TypeVar("_Request", bound=_Restart)


def _read(body: bytes, kind: type[_Request]) -> _Request:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        expected = 'expected a JSON object such as {"device": "0"}'
        raise web.HTTPBadRequest(text=f"{expected}: {error!s:.200}") from None


def _shown(text: str | None) -> str:
    """Text from outside, bounded and in quotes."""
    return repr((text or "")[:100])
