"""Follows one Node: lists it, watches it, and reports each change that matters.

Whatever breaks, the last view stays in force and the server is asked again with backoff. There is
no polling, and no loop without a wait in it, however a server misbehaves.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NoReturn

import aiohttp

from nodeagent.backoff import Backoff
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, parsed
from nodeagent.cluster.client.faults import ClusterFault, ConnectionCut
from nodeagent.cluster.client.node_view import NodeView, is_newer, view_of
from nodeagent.cluster.client.requests import JsonObject

_PURPOSE = "a watch of the Node"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Up to `version`: the Node is like `node`, or `removed`; neither is a bookmark."""

    version: str
    node: JsonObject | None = None
    removed: bool = False


async def events(
    response: aiohttp.ClientResponse, *, server: str, silence: float
) -> AsyncIterator[WatchEvent]:
    """Yield what a watch brings; end when the server ends it or nothing comes for so many seconds.

    Silence is a reason to watch anew, not a fault: no event and no bookmark is promised.
    Raises `ConnectionCut`, or the fault that a line stands for.
    """
    while True:
        waiting = asyncio.timeout(silence)
        try:
            async with waiting:
                line = await response.content.readline()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if waiting.expired():
                return
            raise faults.from_error(error, purpose=_PURPOSE, server=server, cut=True) from error
        if not line:
            return
        yield await _event(line)


async def _event(line: bytes) -> WatchEvent:
    try:
        found = await parsed(line)
    except (ValueError, RecursionError) as error:
        # A line that was cut off looks the same as the page of a proxy.
        raise faults.strange_answer(_PURPOSE, "a line of it is not JSON") from error
    return _event_of(found)


def _event_of(line: object) -> WatchEvent:
    match line:
        case {"type": "ERROR", "object": {"code": int(code)} as status}:
            raise faults.from_status(code, json.dumps(status), purpose=_PURPOSE)
        case {"kind": "Status", "code": int(code)} as status:
            raise faults.from_status(code, json.dumps(status), purpose=_PURPOSE)
        case {"type": kind, "object": {"metadata": {"resourceVersion": str(version)}} as node}:
            match kind:
                case "ADDED" | "MODIFIED":
                    return WatchEvent(version, node)
                case "DELETED":
                    return WatchEvent(version, removed=True)
                case "BOOKMARK":
                    return WatchEvent(version)
    raise faults.strange_answer(_PURPOSE, "a line of it is no event")


@dataclass(frozen=True, slots=True)
class FollowIntervals:
    """Times in seconds; pairs are ranges from which each time is drawn anew.

    A silent watch is followed by one that goes on where it was: a server that has stopped leaves
    its connections up, and shows itself by not answering. After `watch` a list guards against
    events that were lost; a watch that begins with what is there would not be possible on an etcd
    without progress notifications.
    """

    watch: tuple[float, float] = (600.0, 900.0)  # how long watches go on from one list
    silence: float = 30.0
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most
    healthy_after: float = 60.0  # a watch that lasted so long was a good one

    def watch_seconds(self, chance: float) -> float:
        """How long watches go on from the next list; `chance` is in [0, 1)."""
        low, high = self.watch
        return low + (high - low) * chance

    def is_early(self, lasted: float, seconds: float) -> bool:
        """Whether a watch that was asked for `seconds` ended suspiciously early."""
        return lasted < min(self.healthy_after, seconds - 1.0)


class NodeFollower:
    """Follows the Node `name` while `run` runs.

    `on_view` gets the view at first and whenever it is another one, and None when there is no such
    Node; a re-created Node is reported as None and then the new one. `on_fault` gets a fault
    when following breaks and when it breaks in another way, and None when it goes on. Both are
    called in the loop and must not take long. `jitter` gives numbers in [0, 1).
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str,
        *,
        on_view: Callable[[NodeView | None], None],
        on_fault: Callable[[ClusterFault | None], None] = lambda _: None,
        intervals: FollowIntervals = FollowIntervals(),
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._access = access
        self._name = name
        self._on_view = on_view
        self._on_fault = on_fault
        self._intervals = intervals
        self._clock = clock
        self._jitter = jitter
        self._backoff = Backoff(*intervals.retry, spread=1.0, jitter=jitter)
        self._reported = False
        self._view: NodeView | None = None
        self._version = ""  # what to watch from; "": list first
        self._until = 0.0  # then list again, by the clock
        self.fault: ClusterFault | None = None  # why the Node cannot be followed now
        self.is_reachable = False  # not before the first answer

    async def run(self) -> NoReturn:
        while True:
            try:
                if not self._version or self._clock() >= self._until:
                    self._version = await self._list()
                    self._until = self._clock() + self._intervals.watch_seconds(self._jitter())
                if await self._watch():
                    # A proxy that hangs up at once must not be asked in a circle.
                    await asyncio.sleep(self._backoff.next())
            except ClusterFault as fault:
                await self._back_off(fault)

    async def _list(self) -> str:
        listed = await self._access.listed(requests.list_node(self._name))
        self._report(view_of(listed.first) if listed.items else None)
        self._answered()
        return listed.version

    async def _watch(self) -> bool:
        """Watch once; whether the server ended it suspiciously early."""
        intervals = self._intervals
        seconds = max(self._until - self._clock(), 1.0)
        request = requests.watch_node(self._name, version=self._version, seconds=seconds)
        async with self._access.watch(request) as response:
            begun = last = self._clock()
            self._answered()
            try:
                server = self._access.server
                async for event in events(response, server=server, silence=intervals.silence):
                    last = self._clock()
                    self._take(event)
            finally:
                ended = self._clock()
                is_silent = ended - last >= intervals.silence
                if is_silent or ended - begun >= intervals.healthy_after:
                    self._backoff.reset()  # failures before a good watch are forgotten
        return not is_silent and intervals.is_early(ended - begun, seconds)

    def _take(self, event: WatchEvent) -> None:
        known = self._view.resource_version if self._view else self._version
        is_bookmark = event.node is None and not event.removed
        if not is_bookmark and is_newer(event.version, known):  # else it is sent again, or late
            self._report(view_of(event.node) if event.node else None)
        if is_newer(event.version, self._version):
            self._version = event.version

    def _report(self, view: NodeView | None) -> None:
        before = self._view
        if self._reported and view == before:
            self._view = view  # its version is newer
            return
        if before is not None and view is not None and before.uid != view.uid:
            self._on_view(None)
        self._reported, self._view = True, view
        self._on_view(view)

    def _answered(self) -> None:
        self.is_reachable = True
        if self.fault is not None:
            self.fault = None
            self._on_fault(None)

    async def _back_off(self, fault: ClusterFault) -> None:
        if not isinstance(fault, ConnectionCut):
            self._version = ""  # 410, or what happened meanwhile is not known
        self.is_reachable = False
        before, self.fault = self.fault, fault
        if type(before) is not type(fault):
            self._on_fault(fault)
        await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))
