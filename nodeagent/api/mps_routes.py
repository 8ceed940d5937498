"""What a client can ask about MPS, and, over the Unix socket alone, have done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from aiohttp import web

from nodeagent.api.answers import Answers
from nodeagent.api.guard import only_over_unix_socket
from nodeagent.errors import UnknownDevice
from nodeagent.uncancelled import uncancelled
from nodeagent.views.shapes import Json

_LONGEST_NAME = 100  # characters of a device's
_LONGEST = sys.float_info.max  # seconds; an integer beyond it is no float


def mps_routes(answers: Answers) -> list[web.RouteDef]:
    """The paths; whatever changes something is bound to the Unix socket here and nowhere else."""
    routes = _MpsRoutes(answers)
    return [
        web.get("/v1/mps", routes.show),
        web.post("/v1/mps/restart", only_over_unix_socket(routes.restart)),
        web.post("/v1/mps/drain", only_over_unix_socket(routes.drain)),
    ]


class _MpsRoutes:
    """One method for each path."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def show(self, request: web.Request) -> web.Response:
        device = request.query.get("device")
        report = self._answers.mps(device)
        if report is None:
            raise web.HTTPNotFound(text=f"this node has no device {_shown(device)}")
        return web.json_response(report)

    async def restart(self, request: web.Request) -> web.Response:
        given = _read(await request.read(), "device", "force")
        device = self._one_daemon(given["device"])
        force = bool(given.get("force"))
        # What was begun is finished although the client disconnects.
        return web.json_response(await uncancelled(self._answers.restart_mps(device, force)))

    async def drain(self, request: web.Request) -> web.Response:
        """A client that disconnects gives the drain up: else the device would take no clients
        without a visible reason.
        """
        given = _read(await request.read(), "device", "timeout", "force")
        device = self._one_daemon(given["device"])
        seconds, force = given.get("timeout"), bool(given.get("force"))
        return web.json_response(await self._answers.drain_mps(device, seconds, force))

    def _one_daemon(self, device: str) -> str:
        """The UUID of the device meant; raises UnknownDevice unless it has exactly one daemon."""
        report = self._answers.mps(device)
        if report is None:
            raise UnknownDevice(
                f"this node has no device {_shown(device)}",
                remedy="nodeagent mps status lists the devices with MPS",
            )
        daemons: list[Json] = report["daemons"]
        if not daemons:
            raise UnknownDevice(
                f"{device} has no MPS daemon",
                remedy="nodeagent mps status lists the devices with one",
            )
        if len(daemons) > 1:
            first = daemons[0]["device"]
            raise UnknownDevice(
                f"{device} has {len(daemons)} MPS daemons",
                remedy=f"name the MIG device, by UUID or as GPU:SLICE, such as {first}",
            )
        return str(daemons[0]["device"])


# --- requests -------------------------------------------------------------------------------------


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME


def _is_timeout(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= _LONGEST)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "device": (_is_name, "an index, a UUID or GPU:SLICE, written as text"),
    "timeout": (_is_timeout, "seconds, a number from 0, or null"),
    "force": (lambda value: value is None or isinstance(value, bool), "true or false"),
}


def _read(body: bytes, *accepted: str) -> Json:
    """The body of a request, checked. An unknown key could change the meaning: it is refused."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text='expected a JSON object such as {"device": "0"}')
    unknown = sorted(given.keys() - set(accepted))
    if unknown:
        raise web.HTTPBadRequest(
            text=f"found the key {_shown(unknown[0])}; accepted: {', '.join(accepted)}"
        )
    for name in accepted:
        is_right, expected = _FIELDS[name]
        if not is_right(given.get(name)):
            raise web.HTTPBadRequest(text=f"{name}: expected {expected}")
    return given


def _shown(text: str | None) -> str:
    """Text from outside, bounded and in quotes."""
    return repr((text or "")[:_LONGEST_NAME])
