"""Which requests are served: none that a web page in a browser sent, changes for root alone; and
which headers answers have.

A page from anywhere can make its own name point to 127.0.0.1 and then read what listens there (DNS
rebinding). Its requests carry the page's name as Host, and are refused for it.
"""

import ipaddress
import re
import socket

from aiohttp import web, web_response
from aiohttp.typedefs import Handler, Middleware

from nodeagent.api.connection import count_refused
from nodeagent.api.limits import LOOPBACK, Reason, peer_of
from nodeagent.errors import DrainTimedOut, NodeagentError, StillInUse, UnknownDevice

# The Server header would reveal the versions of Python and aiohttp, also in answers that aiohttp
# makes by itself to what is no HTTP, which no middleware sees.
web_response.SERVER_SOFTWARE = "nodeagent"  # type: ignore[attr-defined]  # an imported name

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
_STATUSES = {UnknownDevice: 404, StillInUse: 409, DrainTimedOut: 504}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def refuse_foreign_hosts(listen_host: str) -> Middleware:
    """A middleware that refuses requests over loopback that name another host."""
    named = host_name(f"[{listen_host}]" if ":" in listen_host else listen_host)
    allowed = _LOCAL_NAMES | ({named} if named else set())

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        own = request.transport.get_extra_info("sockname") if request.transport else None
        if peer_of(own) == LOOPBACK:  # a Unix socket is guarded by its mode
            hosts = request.headers.getall("Host", [])
            if len(hosts) > 1 or any(host_name(host) not in allowed for host in hosts):
                count_refused(request, Reason.HOST)
                raise web.HTTPForbidden(
                    text="this address answers only to localhost, 127.0.0.1 and [::1]"
                )
        return await handler(request)

    return guard


def host_name(host: str) -> str:
    """The name or address in a Host header, without port, brackets and a final dot.

    "" for what is not exactly a host with a port or without: what a browser makes of it is unknown.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return ""
    if found["ip"]:
        try:
            return str(ipaddress.IPv6Address(found["ip"]))
        except ValueError:
            return ""
    return found["name"].casefold().removesuffix(".")


def only_over_unix_socket(handler: Handler) -> Handler:
    """A handler that answers only over the agent's Unix socket, whose mode admits its owner."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        own = request.transport.get_extra_info("socket") if request.transport else None
        if own is None or own.family != socket.AF_UNIX:  # not known: refused
            raise web.HTTPForbidden(
                text="changes are taken only over the agent's Unix socket (agent.sock in run.dir)"
            )
        return await handler(request)

    return guarded


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as JSON, in the words it was raised with."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        if error.status in {429, 503}:
            headers["Retry-After"] = "1"
        return web.json_response(
            {"error": error.text or error.reason}, status=error.status, headers=headers
        )
    except NodeagentError as error:
        remedy = {"remedy": error.remedy} if error.remedy else {}
        status = _STATUSES.get(type(error), 500)
        return web.json_response({"error": error.message, **remedy}, status=status)


async def set_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid browsers what they need not do."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
