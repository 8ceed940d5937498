"""A watch request: what happened since a version, then what happens, one JSON line each."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, assert_never

from aiohttp import web

from tests.simulated_cluster.faults import (
    Answer,
    Cut,
    Dribble,
    End,
    ErrorEvent,
    Fault,
    Faults,
    Freeze,
    Html,
    Reset,
    Slow,
    break_off,
    error_event,
    reset,
)
from tests.simulated_cluster.refusals import Refused, invalid
from tests.simulated_cluster.selectors import Matches
from tests.simulated_cluster.store import GROUPS, KINDS, Change, Store, events_of

DEFAULT_SECONDS = 1800.0  # the real server's shortest, when the request names no time


@dataclass(frozen=True, slots=True)
class Asked:
    """What a watch request asks for. `version` is None where it names none."""

    plural: str
    namespace: str
    matches: Matches
    version: int | None
    seconds: float
    bookmarks: bool


def asked(plural: str, namespace: str, matches: Matches, query: Any) -> Asked:
    """Read the query; raises Refused where the real server does, one without the gate WatchList."""
    if "sendInitialEvents" in query:  # else kubectl would wait for a bookmark; so it lists first
        forbidden = "sendInitialEvents: Forbidden: needs the feature gate WatchList"
        raise invalid("ListOptions.meta.k8s.io", "", forbidden)
    bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}
    version = version_of(query.get("resourceVersion", ""))
    seconds = number(query, "timeoutSeconds") or DEFAULT_SECONDS
    return Asked(plural, namespace, matches, version, seconds, bookmarks)


def version_of(text: str) -> int | None:
    """A resourceVersion; none given, or "0", leaves the version to the server."""
    if text in {"", "0"}:
        return None
    if not text.isdecimal():
        raise Refused(400, f'Invalid value: "{text}": resourceVersion has to be a number')
    return int(text)


def number(query: Any, name: str) -> int:
    """A whole number of the query, 0 where there is none."""
    text = query.get(name, "0")
    if not text.isdecimal():
        raise Refused(400, f'{name}: Invalid value: "{text}": has to be a number')
    return int(text)


class Stream:
    """One watch that is open: what it sends, and what strikes it."""

    def __init__(
        self,
        request: web.Request,
        asked: Asked,
        store: Store,
        faults: Faults,
        *,
        bookmarks: float,
        latency: float = 0.0,
        progress: bool = True,
    ) -> None:
        self._request, self._asked, self._store, self._faults = request, asked, store, faults
        self._bookmark_seconds, self._latency = bookmarks, latency
        self._progress = progress
        self._queue: asyncio.Queue[Change | Fault] = asyncio.Queue()
        self._reported = 0  # the version that the client knows everything of
        self._response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._response.enable_chunked_encoding()

    async def run(self) -> web.StreamResponse:
        """Answer until the watch's time is over or something ends it."""
        self._store.watching.add(self._queue)
        self._faults.watching.add(self._queue)
        try:
            await self._tell()
        except ConnectionError:
            pass  # the client went
        finally:
            self._store.watching.discard(self._queue)
            self._faults.watching.discard(self._queue)
        return self._response

    async def _tell(self) -> None:
        try:
            backlog = self._backlog()
        except Refused as refused:  # even so the answer begins with 200
            await self._response.prepare(self._request)
            await self._event("ERROR", refused.status())
            await self._response.write_eof()
            return
        await self._response.prepare(self._request)
        for kind, found in backlog:
            await self._event(kind, found)
        await self._follow()

    def _backlog(self) -> list[tuple[str, dict[str, Any]]]:
        self._reported = self._store.version
        asked = self._asked
        if asked.version is not None:
            changes = self._store.since(asked.version)
            return [event for change in changes for event in self._events(change)]
        present = self._store.all(asked.plural, asked.namespace)
        return [("ADDED", found) for found in present if asked.matches(found)]

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._asked.seconds
        next_bookmark = loop.time() + self._bookmark_seconds
        while (now := loop.time()) < end:
            came: Change | Fault | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(end, next_bookmark) - now):
                    came = await self._queue.get()
            if isinstance(came, Change):
                if self._latency and self._queue.empty():
                    await asyncio.sleep(self._latency)
                await self._change(came)
            elif came is not None and await self._struck(came):
                return
            if loop.time() >= next_bookmark:
                next_bookmark = loop.time() + self._bookmark_seconds
                await self._bookmark()
        await self._response.write_eof()  # without a bookmark: no server promises one here

    async def _change(self, change: Change) -> None:
        for kind, found in self._events(change):
            await self._event(kind, found)
        self._reported = change.version

    def _events(self, change: Change) -> list[tuple[str, dict[str, Any]]]:
        found = change.after or change.before or {}
        if change.plural != self._asked.plural:
            return []
        if self._asked.namespace not in {"", found["metadata"].get("namespace", "")}:
            return []
        return list(events_of(change, self._asked.matches))

    async def _bookmark(self) -> None:
        """Send how far the client is, where it wants to know; never past what it was sent. Without
        etcd's progress notifications the server does not know it while nothing changes.
        """
        if not (self._asked.bookmarks and self._progress):
            return
        if self._queue.empty():
            self._reported = self._store.version
        metadata = {"resourceVersion": str(self._reported)}
        empty = {"kind": KINDS[self._asked.plural], "spec": {}, "status": {}}
        version = GROUPS.get(self._asked.plural, "v1")
        await self._event("BOOKMARK", {**empty, "apiVersion": version, "metadata": metadata})

    async def _event(self, kind: str, found: dict[str, Any]) -> None:
        await self._response.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

    async def _struck(self, fault: Fault) -> bool:
        """Do to the open watch what the fault says; whether it is over."""
        match fault:
            case Answer(code):
                await self._response.write(error_event(ErrorEvent(code)))
            case ErrorEvent():
                await self._response.write(error_event(fault))
            case Html(text=text):
                await self._response.write(text.encode())
            case End():
                pass
            case Reset() | Cut():
                await self._broken(fault)
                return True
            case Freeze() | Slow() | Dribble():
                await self._delayed(fault)
                return False
            case _:
                assert_never(fault)
        await self._response.write_eof()
        return True

    async def _broken(self, fault: Reset | Cut) -> None:
        if isinstance(fault, Reset):
            reset(self._request)
        else:
            await break_off(self._request, self._response, clean=fault.clean)

    async def _delayed(self, fault: Freeze | Slow | Dribble) -> None:
        if isinstance(fault, Freeze):
            await self._faults.frozen()
        else:
            await asyncio.sleep(fault.seconds)
