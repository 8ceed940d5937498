"""What a client can ask about MPS, and, over the Unix socket alone, have done."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from nodeagent.api.answers import Answers, Json
from nodeagent.api.guard import only_over_unix_socket
from nodeagent.errors import DrainTimedOut, NodeagentError, StillInUse, UnknownDevice

_LONGEST_NAME = 100  # characters of a device's


def mps_routes(answers: Answers) -> list[web.RouteDef]:
    """The paths; whatever changes something is bound to the Unix socket here and nowhere else."""
    routes = _MpsRoutes(answers)
    return [
        web.get("/v1/mps", routes.show),
        web.post("/v1/mps/restart", only_over_unix_socket(routes.restart)),
        web.post("/v1/mps/drain", only_over_unix_socket(routes.drain)),
    ]


@dataclass(frozen=True, slots=True)
class _MpsRequest:
    """The body of a request."""

    device: str
    timeout: float | None = None
    force: bool = False


class _MpsRoutes:
    """One method for each path."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._under_way: set[asyncio.Task[Json]] = set()

    async def show(self, request: web.Request) -> web.Response:
        device = request.query.get("device")
        report = self._answers.mps(device)
        if report is None:
            raise web.HTTPNotFound(text=f"this node has no device {_shown(device)}")
        return web.json_response(report)

    async def restart(self, request: web.Request) -> web.Response:
        asked = _read(await request.read(), ("device", "force"))
        return await _answered(self._to_the_end(self._restart(asked)))

    async def drain(self, request: web.Request) -> web.Response:
        """A client that disconnects gives the drain up: else the device would take no clients
        without a visible reason.
        """
        asked = _read(await request.read(), ("device", "timeout", "force"))
        return await _answered(self._drain(asked))

    async def _restart(self, asked: _MpsRequest) -> Json:
        return await self._answers.restart_mps(self._one_daemon(asked.device), asked.force)

    async def _drain(self, asked: _MpsRequest) -> Json:
        device = self._one_daemon(asked.device)
        return await self._answers.drain_mps(device, asked.timeout, asked.force)

    async def _to_the_end(self, doing: Coroutine[Any, Any, Json]) -> Json:
        """Finish what was begun although the client disconnects."""
        task = asyncio.create_task(doing)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, doing: asyncio.Task[Json]) -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            doing.exception()  # the client may be gone; the agent reports it elsewhere

    def _one_daemon(self, device: str) -> str:
        """The UUID of the device meant; raises NodeagentError unless it has exactly one daemon."""
        report = self._answers.mps(device)
        if report is None:
            raise UnknownDevice(
                f"this node has no device {_shown(device)}",
                remedy="nodeagent mps status shows those that have MPS",
            )
        daemons: list[Json] = report["daemons"]
        if not daemons:
            raise UnknownDevice(
                f"{device} has no MPS daemon", remedy="nodeagent mps status shows which have one"
            )
        if len(daemons) > 1:
            first = daemons[0]["device"]
            raise UnknownDevice(
                f"{device} has {len(daemons)} MPS daemons",
                remedy=f"name the MIG device, by UUID or as GPU:SLICE, such as {first}",
            )
        return str(daemons[0]["device"])


# --- requests -------------------------------------------------------------------------------------


def _read(body: bytes, accepted: tuple[str, ...]) -> _MpsRequest:
    """The body of a request. An unknown key could change the meaning: it is refused."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text='expected a JSON object such as {"device": "0"}')
    unknown = sorted(str(key) for key in given.keys() - set(accepted))
    if unknown:
        raise web.HTTPBadRequest(
            text=f"found the key {_shown(unknown[0])}; accepted: {', '.join(accepted)}"
        )
    return _MpsRequest(
        _device(given.get("device")), _timeout(given.get("timeout")), _force(given.get("force"))
    )


def _device(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_NAME:
        raise web.HTTPBadRequest(
            text="device: expected an index, a UUID or GPU:SLICE, written as text"
        )
    return value


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    number = type(value) in (int, float) and math.isfinite(value) and value >= 0
    if not number:
        raise web.HTTPBadRequest(text="timeout: expected seconds, a number from 0, or null")
    return float(value)


def _force(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise web.HTTPBadRequest(text="force: expected true or false")
    return bool(value)


def _shown(text: str | None) -> str:
    """Text from outside, bounded and in quotes."""
    return repr((text or "")[:_LONGEST_NAME])


# --- answers --------------------------------------------------------------------------------------


async def _answered(doing: Awaitable[Json]) -> web.Response:
    """What came of it, also where that is a refusal."""
    try:
        return web.json_response(await doing)
    except NodeagentError as error:
        return _refusal(error)


def _refusal(error: NodeagentError) -> web.Response:
    body = {"error": error.message, **({"remedy": error.remedy} if error.remedy else {})}
    return web.json_response(body, status=_status(error))


def _status(error: NodeagentError) -> int:
    match error:
        case UnknownDevice():
            return 404
        case DrainTimedOut():
            return 504
        case StillInUse():
            return 409
        case _:
            return 500
