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
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault, ConnectionCut
from nodeagent.cluster.client.node_view import NodeView, is_newer, view_of
from nodeagent.cluster.client.requests import JsonObject
from nodeagent.strict_json import parse_json

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
            raise faults.from_error(error, purpose=_PURPOSE, server=server, cut=True) from error
        if not line:
            return
        yield _event(line)


def _event(line: bytes) -> WatchEvent:
    try:
        match parse_json(line):
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
    except ValueError as error:
        # A line that was cut off looks the same as the page of a proxy.
        raise faults.strange_answer(_PURPOSE, "a line of it is not JSON") from error
    raise faults.strange_answer(_PURPOSE, "a line of it is no event")


@dataclass(frozen=True, slots=True)
class FollowIntervals:
    """Times in seconds; pairs are ranges from which each time is drawn anew."""

    watch: tuple[float, float] = (240.0, 480.0)  # how long one watch may last
    list_every: tuple[float, float] = (600.0, 900.0)  # guards against events that were lost
    silence: float = 150.0  # bookmarks come every minute
    quiet: float = 20.0  # after so long without an event the server is asked whether it is alive
    probe: float = 10.0  # how long it may take to answer that
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most
    healthy_after: float = 60.0  # a watch that lasted so long was a good one


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
        self._version: str | None = None  # what to watch from; None: list first
        self._list_due = 0.0
        self.fault: ClusterFault | None = None  # why the Node cannot be followed now
        self.is_reachable = False  # not before the first answer

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        while True:
            try:
                if self._version is None or self._clock() >= self._list_due:
                    self._version = await self._list()
                ended_early = await self._watch(self._version)
            except ClusterFault as fault:
                await self._back_off(fault)
            else:
                if ended_early:
                    # A proxy that hangs up at once must not be asked in a circle.
                    await asyncio.sleep(self._backoff.next())

    async def _list(self) -> str:
        listed = await self._access.listed(requests.list_node(self._name))
        self._report(view_of(listed.first) if listed.items else None)
        self._list_due = self._clock() + self._drawn(self._intervals.list_every)
        self._answered()
        return listed.version

    async def _watch(self, version: str) -> bool:
        """Watch once from `version`; whether the server ended it suspiciously early."""
        until_list = max(self._list_due - self._clock(), 1.0)
        seconds = min(self._drawn(self._intervals.watch), until_list)
        request = requests.watch_node(self._name, version=version, seconds=seconds)
        async with self._access.watch(request) as response:
            begun = self._clock()
            self._answered()
            try:
                await self._take_all(response)
            finally:
                lasted = self._clock() - begun
                if lasted >= self._intervals.healthy_after:
                    self._backoff.reset()  # failures before a good watch are forgotten
        # One that was asked for less than a minute has not ended early when it ends in time.
        return lasted < min(self._intervals.healthy_after, seconds - 1.0)

    async def _take_all(self, response: aiohttp.ClientResponse) -> None:
        """Take events until the watch ends; raises a fault also when the server is stuck."""
        received = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as parts:
                probing = parts.create_task(self._probe(received))
                server, silence = self._access.server, self._intervals.silence
                async for event in events(response, server=server, silence=silence):
                    received.set()
                    self._take(event)
                probing.cancel()
        except* ClusterFault as group:
            raise group.exceptions[0] from group

    async def _probe(self, received: asyncio.Event) -> NoReturn:
        """Probe a silent server.

        The connections of a stopped process stay up, so the kernel's keepalive detects nothing.
        """
        while True:
            received.clear()
            try:
                async with asyncio.timeout(self._intervals.quiet):
                    await received.wait()
            except TimeoutError:
                await self._access.probe(within=self._intervals.probe)

    def _take(self, event: WatchEvent) -> None:
        if event.node is None and not event.removed:
            self._version = event.version
        elif self._version is None or is_newer(event.version, self._version):
            # Else it is a repetition, or out of order.
            self._version = event.version
            self._report(view_of(event.node) if event.node else None)

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
            self._version = None  # 410, or what happened meanwhile is not known
        self.is_reachable = False
        before, self.fault = self.fault, fault
        if type(before) is not type(fault):
            self._on_fault(fault)
        await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))

    def _drawn(self, between: tuple[float, float]) -> float:
        low, high = between
        return low + (high - low) * self._jitter()
