"""Keeps annotations, labels and conditions of one Node as wanted; sends only the difference.

Requests are spaced. One that fails is built anew, from what is wanted and what is there by then,
with backoff; after a conflict the Node is read before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import NoReturn

from nodeagent.backoff import Backoff
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import (
    ANNOTATIONS,
    CONDITIONS,
    LABELS,
    NodeView,
    Wanted,
    differences,
    is_newer,
    patch_of,
    too_large,
    view_of,
)
from nodeagent.rate_limit import Allowance

_LARGEST = 128 * 1024  # bytes of an annotation; all writers together have 256 KiB
_CAUGHT_UP = 60.0  # seconds within which a watch tells what was before an own write
_CONTEST = 3  # times that the same was undone: a person who edits by hand stops before


@dataclass(frozen=True, slots=True)
class WriteIntervals:
    """Times in seconds. Metadata, status and taints are rate-limited separately: after a quiet
    time `burst` requests of a kind go at once; only continuous changes are held to one per
    `interval`.
    """

    interval: float = 0.5
    burst: int = 10
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most
    refused_again: float = 300.0  # what the server refuses for good; what it forbids, at most


@dataclass(slots=True)
class _Channel:
    """The requests of one kind."""

    allowance: Allowance
    after_denial: Backoff
    written: Wanted | None = None  # the last one, unless something else is wanted by now
    refused: Wanted | None = None
    refused_until: float = -inf
    fault: ClusterFault | None = None  # why, until a request succeeds


class NodeWriter:
    """Keeps the Node `name` as wanted while `run` runs.

    `observe` gets what is there from a follower. `on_fault` gets a fault when writing breaks or
    breaks in another way, and None when a write succeeds again and no other kind is refused.
    `on_contest` gets the keys that another program sets back again and again.
    `wall` gives the time of day in UTC, for conditions.
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str,
        *,
        on_fault: Callable[[ClusterFault | None], None] = lambda _: None,
        on_contest: Callable[[tuple[str, ...]], None] = lambda _: None,
        intervals: WriteIntervals = WriteIntervals(),
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._name = name
        self._on_fault = on_fault
        self._on_contest = on_contest
        self._intervals = intervals
        self._clock = clock
        self._wall = wall
        self._metadata, self._status, self._taints = self._channels = tuple(
            _Channel(
                Allowance(interval=intervals.interval, burst=intervals.burst),
                Backoff(intervals.retry[0], intervals.refused_again, spread=0.5, jitter=jitter),
            )
            for _ in range(3)
        )
        self._last: _Channel | None = None
        self._after_fault, self._after_contest = (
            Backoff(*intervals.retry, spread=1.0, jitter=jitter) for _ in range(2)
        )
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._wanted = Wanted()
        self._view: NodeView | None = None
        self._look_at = inf  # then the Node is read: the view may be outdated
        self._not_before = -inf
        self._missing_until = -inf  # no Node, by the server; until another is seen
        self._contest_until = -inf
        self._undone = 0  # how often other programs undid the same keys lately
        self._undone_at = -inf
        self._undone_keys: tuple[str, ...] = ()
        self.fault: ClusterFault | None = None  # why the last request failed

    def want(self, wanted: Wanted) -> dict[str, int]:
        """Want this from now on, in place of what was wanted before.

        Annotations that are too large are left out, and returned with their bytes. Raises
        ValueError for a key or a condition that views leave out.
        """
        unseen = [k for k in wanted.annotations if not k.startswith(ANNOTATIONS)]
        unseen += [k for k in wanted.labels if not k.startswith(LABELS)]
        unseen += wanted.conditions.keys() - CONDITIONS
        if unseen:
            raise ValueError(f"wanted but never seen: {', '.join(unseen)}")
        left_out = too_large(wanted.annotations, _LARGEST)
        kept = {key: text for key, text in wanted.annotations.items() if key not in left_out}
        wanted = replace(wanted, annotations=kept)
        if wanted != self._wanted:
            self._wanted = wanted
            self._contest_until = -inf  # a change does not wait for an old contest
            self._wake(forget_written=True)
        return left_out

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this; None: there is none.

        News older than our own are not believed. Where none follow that are as new, the Node is
        read: an etcd that was restored from a backup gives lower versions.
        """
        known = self._view
        same = view is not None and known is not None and view.uid == known.uid
        if view and known and same and not is_newer(view.resource_version, known.resource_version):
            is_older = view.resource_version != known.resource_version
            self._look_at = min(self._look_at, self._clock() + _CAUGHT_UP) if is_older else inf
            self._changed.set()
            return
        self._look_at = inf
        self._missing_until = -inf
        self._view = view
        self._wake(forget_written=not same)

    @property
    def contested(self) -> tuple[str, ...]:
        """The keys that another program keeps setting to something else; empty when none does."""
        return self._undone_keys if self._undone >= _CONTEST and self._is_recent() else ()

    def _is_recent(self) -> bool:
        return self._clock() - self._undone_at <= 2 * self._intervals.retry[1]

    async def settled(self) -> None:
        """Wait until there is nothing that could be written now."""
        await self._settled.wait()

    async def run(self) -> NoReturn:
        while True:
            self._changed.clear()
            if self._clock() >= self._may_look_at():
                await self._look()
            patch = self._next()
            earliest = self._may_go_at(patch) if patch else self._refused_until()
            if patch is None:
                self._settled.set()
            elif earliest <= self._clock():
                await self._send(patch)
                continue
            earliest = min(earliest, self._may_look_at())
            with suppress(TimeoutError):
                async with asyncio.timeout(earliest - self._clock() if earliest < inf else None):
                    await self._changed.wait()

    def _wake(self, *, forget_written: bool) -> None:
        if forget_written:
            for channel in self._channels:
                channel.written = None
        self._settled.clear()
        self._changed.set()

    # --- what is sent next ------------------------------------------------------------------------

    def _channel(self, patch: Wanted) -> _Channel:
        if patch.taints:
            return self._taints
        return self._status if patch.conditions else self._metadata

    def _next(self) -> Wanted | None:
        """What may go first, and of two that may go now, by turns."""
        now = self._clock()
        if self._view is None or now < self._missing_until:
            return None
        found = differences(self._wanted, self._view)
        return min(
            (patch for patch in found if not self._is_refused(patch)),
            key=lambda p: (max(now, self._may_go_at(p)), self._channel(p) is self._last),
            default=None,
        )

    def _may_go_at(self, patch: Wanted) -> float:
        paced = self._channel(patch).allowance.next_at()
        return max(self._not_before, self._contest_until, paced)

    def _may_look_at(self) -> float:
        return max(self._look_at, self._not_before)

    def _is_refused(self, patch: Wanted) -> bool:
        channel = self._channel(patch)
        return patch == channel.refused and self._clock() < channel.refused_until

    def _refused_until(self) -> float:
        """When the first of what was refused may be tried again; infinity when nothing was."""
        now = self._clock()
        refused = (self._missing_until, *(c.refused_until for c in self._channels))
        return min((again for again in refused if again > now), default=inf)

    # --- one request ------------------------------------------------------------------------------

    async def _look(self) -> None:
        """A follower reports no Node that differs only in what views leave out. What it reports
        without fail is that the Node has gone or is another one.
        """
        self._look_at = self._clock() + _CAUGHT_UP  # where it is not answered
        before = self._view
        with suppress(ClusterFault):
            node = (await self._access.listed(requests.list_node(self._name))).first
            self._look_at = inf
            if node:
                self._learn(view_of(node), before)
                self._wake(forget_written=False)

    def _learn(self, view: NodeView, before: NodeView | None) -> None:
        """The server's answer to a request that was made when `before` was known.

        Of an etcd that was restored from a backup its version is lower than what was known before.
        A follower may have been faster, and know more by now.
        """
        known = self._view
        if known is None or known.uid != view.uid:
            return
        if known is before or is_newer(view.resource_version, known.resource_version):
            self._view = view

    async def _send(self, patch: Wanted) -> None:
        self._channel(patch).allowance.take(self._clock())
        self._last = self._channel(patch)
        before = self._view
        request = patch_of(self._name, patch, before or NodeView(), self._wall())
        try:
            view = view_of(await self._access.send(request))
        except ClusterFault as fault:
            self._failed(patch, fault)
        else:
            self._learn(view, before)
            self._succeeded(patch)

    def _failed(self, patch: Wanted, fault: ClusterFault) -> None:
        now = self._clock()
        match fault:
            case faults.RequestRefused() | faults.NotAllowed():
                channel = self._channel(patch)
                channel.refused = patch
                pause = self._intervals.refused_again
                if isinstance(fault, faults.NotAllowed):
                    # A server that starts forbids all until it has read the roles.
                    pause = channel.after_denial.next()
                channel.refused_until, channel.fault = now + pause, fault
            case faults.ObjectMissing():
                # The follower reports when there is one again, unless a proxy made that up.
                self._missing_until = now + self._intervals.refused_again
            case _:
                if isinstance(fault, faults.WriteConflict):
                    self._look_at = now
                self._not_before = now + self._after_fault.next(fault.retry_after or 0.0)
        before, self.fault = self.fault, fault
        if type(before) is not type(fault):
            self._on_fault(fault)

    def _succeeded(self, patch: Wanted) -> None:
        self._after_fault.reset()
        channel = self._channel(patch)
        channel.refused_until, channel.fault = -inf, None
        channel.after_denial.reset()
        if channel.written == patch:
            self._note_undone(patch)
        channel.written = patch
        if self.fault is not None:
            self.fault = self._still_refused()
            if self.fault is None:
                self._on_fault(None)

    def _still_refused(self) -> ClusterFault | None:
        """Why a kind of write that is still to be made was refused."""
        left = differences(self._wanted, self._view or NodeView())
        found = (self._channel(patch).fault for patch in left)
        return next((fault for fault in found if fault is not None), None)

    def _note_undone(self, patch: Wanted) -> None:
        """Another program undoes what we write: write again, with backoff."""
        now = self._clock()
        if now - self._contest_until > 2 * self._intervals.retry[1]:
            self._after_contest.reset()
        self._contest_until = now + self._after_contest.next()
        self._undone = self._undone + 1 if self._is_recent() else 1
        self._undone_at = now
        self._undone_keys = (
            *(*patch.annotations, *patch.labels),
            *(*patch.conditions, *patch.taints),
        )
        if self._undone == _CONTEST:
            self._on_contest(self._undone_keys)
