"""One watch: lines of the API server's answer become events, or the fault that ended them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.connection import JsonObject
from nodeagent.strict_json import parse_json

_ASKED = "a watch of the Node"


@dataclass(frozen=True, slots=True)
class Present:
    """The Node is there, new or changed."""

    node: JsonObject


@dataclass(frozen=True, slots=True)
class Removed:
    """The Node is gone; `version` is what to watch from."""

    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing happened up to this version."""

    version: str


WatchEvent = Present | Removed | Bookmark


async def events(
    response: aiohttp.ClientResponse, *, server: str, silence: float
) -> AsyncIterator[WatchEvent]:
    """Yield what a watch brings; end when the server ends it or nothing comes for so many seconds.

    A server that lives sends a bookmark every minute, but none is promised: silence is a reason
    to ask anew, not a fault. Raises `ConnectionCut`, or the fault that a line stands for.
    """
    while True:
        waiting = asyncio.timeout(silence)
        try:
            async with waiting:
                line = await response.content.readline()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if waiting.expired():
                return
            raise faults.from_error(error, asked=_ASKED, server=server, cut=True) from error
        if not line:
            return
        yield _event(line)


def _event(line: bytes) -> WatchEvent:
    try:
        match parse_json(line):
            case {"type": "ERROR", "object": {"code": int(code)} as status}:
                raise faults.from_status(code, json.dumps(status), asked=_ASKED)
            case {"type": "ADDED" | "MODIFIED", "object": dict(node)}:
                return Present(node)
            case {"type": "DELETED", "object": {"metadata": {"resourceVersion": str(version)}}}:
                return Removed(version)
            case {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}:
                return Bookmark(version)
            case {"kind": "Status", "code": int(code)} as status:
                raise faults.from_status(code, json.dumps(status), asked=_ASKED)
            case _:
                raise faults.strange_answer(_ASKED, "a line of it is no event")
    except ValueError as error:
        # A line that was cut off looks the same as the page of a proxy.
        raise faults.strange_answer(_ASKED, "a line of it is not JSON") from error
