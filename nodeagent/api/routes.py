"""What a client can ask. Nothing here changes anything; what does, is in `mps_routes`."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from nodeagent.api.answers import Answers, Preview
from nodeagent.api.connection import refused, whole_requests
from nodeagent.api.guard import errors_as_json, refuse_foreign_hosts, set_headers
from nodeagent.api.limits import Limits, Reason
from nodeagent.api.metrics_routes import accepts_gzip, metrics_routes
from nodeagent.api.mps_routes import mps_routes
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.api.page import CONTENT_SECURITY_POLICY, PAGE
from nodeagent.plan.plan import Verdict
from nodeagent.reconcile.event_log import Event
from nodeagent.text import shown
from nodeagent.views import shapes
from nodeagent.views.shapes import Json, as_json
from nodeagent.views.text import time_json

LARGEST_BODY = 64 * 1024  # bytes
_STILL_THERE = 15.0  # seconds between signs of life to those who follow the events

_REFUSED = frozenset({Verdict.INVALID, Verdict.UNSATISFIABLE})


def create_app(answers: Answers, *, listen_host: str, limits: Limits) -> web.Application:
    """The whole API as an aiohttp application, for one listener."""
    app = web.Application(
        middlewares=[errors_as_json, refuse_foreign_hosts(listen_host), whole_requests],
        client_max_size=LARGEST_BODY,
    )
    app.on_response_prepare.append(set_headers)
    routes = _Routes(answers, limits)
    app.add_routes(
        [
            web.get("/", routes.page),
            *metrics_routes(answers, limits),
            web.get("/v1/status", routes.status),
            web.get("/v1/plan", routes.plan),
            web.post("/v1/plan/preview", routes.preview),
            web.get("/v1/events", routes.events),
            web.get("/openapi.json", routes.openapi),
            *mps_routes(answers),
        ]
    )
    return app


class _Routes:
    """One method for each path."""

    def __init__(self, answers: Answers, limits: Limits) -> None:
        self._answers = answers
        self._limits = limits
        self._one_preview = asyncio.Lock()  # they compute; the agent's own work comes first
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
        headers = {"ETag": page.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == page.etag:
            return web.Response(status=304, headers=headers)
        body = page.body
        if accepts_gzip(request.headers.get("Accept-Encoding", "")):
            headers["Content-Encoding"] = "gzip"
            body = page.zipped
        return web.Response(
            body=body, headers=headers, content_type="application/json", charset="utf-8"
        )

    async def plan(self, _: web.Request) -> web.Response:
        return web.json_response(await self._answers.plan())

    async def preview(self, request: web.Request) -> web.Response:
        text = await request.read()
        if self._previews >= self._limits.previews:
            refused(request, Reason.BUSY)
            raise web.HTTPServiceUnavailable(text="too many previews at once")
        self._previews += 1
        computing = asyncio.create_task(
            self._compute(text, request.query.get("configuration")), name="preview"
        )
        computing.add_done_callback(self._computed)
        # Who asks and leaves does not end the thread, so the next one waits for it all the same.
        found = await asyncio.shield(computing)
        if found is None:
            raise web.HTTPServiceUnavailable(text="the GPUs have not been observed yet")
        if not found.readable:
            return web.json_response(found.report, status=400)
        return web.json_response(found.report, status=422 if found.verdict in _REFUSED else 200)

    async def _compute(self, text: bytes, configuration: str | None) -> Preview | None:
        async with self._one_preview:
            return await asyncio.to_thread(self._answers.preview, text, configuration)

    def _computed(self, _: asyncio.Task[Preview | None]) -> None:
        self._previews -= 1

    async def openapi(self, _: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION)

    async def events(self, request: web.Request) -> web.StreamResponse:
        if "text/event-stream" not in request.headers.get("Accept", ""):
            log, within = self._answers.events, _within(request)
            kept = log.events if within is None else log.of_last(within)
            return web.json_response([event_json(event) for event in kept])
        if self._followers >= self._limits.followers:
            refused(request, Reason.BUSY)
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
                    async with asyncio.timeout(_STILL_THERE):
                        event = await follower.next()
                except TimeoutError:
                    await self._send(request, response, ": still there\n\n")
                    continue
                if event is None:
                    return response
                text = f"id: {event.id}\ndata: {json.dumps(event_json(event))}\n\n"
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


def _last_event_id(request: web.Request) -> int | None:
    given = request.headers.get("Last-Event-ID", request.query.get("after", ""))
    # A bounded length keeps the conversion cheap.
    return int(given) if given.isascii() and given.isdigit() and len(given) < 20 else None


def _within(request: web.Request) -> float | None:
    """How many seconds back the events are wanted; None: all that are kept."""
    given = request.query.get("within", "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise web.HTTPBadRequest(text=f"within is a whole number of seconds, not {shown(given)}")
    return float(given)


def event_json(event: Event) -> Json:
    """One event; what is not known or not meant is absent."""
    return as_json(
        shapes.Event(
            id=event.id,
            time=time_json(event.time),
            type=event.type.value,
            severity="warning" if event.type.is_warning else "info",
            routine=event.type.is_routine,
            message=event.message,
            reason=event.reason,
            gpu=event.gpu,
            device=event.device,
            claim=event.claim,
            before=event.before,
            after=event.after,
            facts=dict(event.facts) or None,
            count=event.count,
            since=time_json(event.since) if event.since else "",
            first=event.first,
        )
    )
