"""Keeps annotations, labels and conditions of one Node as wanted; sends only the difference.

Requests are spaced. One that fails is built anew, from what is wanted and what is there by then,
with backoff.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn, assert_never

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault, NotAllowed, ObjectMissing, RequestRefused
from nodeagent.cluster.client.node_view import Interest, NodeCondition, NodeView, is_newer, view_of
from nodeagent.rate_limit import Allowance

_Keys = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the agent wants on its Node. None removes a key; keys that are not named, and conditions
    of other types, stay as they are.
    """

    annotations: _Keys = field(default_factory=dict)
    labels: _Keys = field(default_factory=dict)
    conditions: Mapping[str, NodeCondition] = field(default_factory=dict)  # `since` is ignored


@dataclass(frozen=True, slots=True)
class TooLarge:
    """An annotation that must not be sent; `size` is bytes, key and value together."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class MetadataPatch:
    """Keys to set, and to take away where the value is None."""

    annotations: _Keys
    labels: _Keys

    @property
    def keys(self) -> tuple[str, ...]:
        """What it changes, by name."""
        return (*self.annotations, *self.labels)

    def body(self) -> dict[str, Any]:
        """A JSON merge patch."""
        parts = {"annotations": self.annotations, "labels": self.labels}
        return {"metadata": {name: dict(keys) for name, keys in parts.items() if keys}}


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """Conditions to write, by type."""

    conditions: Mapping[str, NodeCondition]
    present: Mapping[str, NodeCondition] = field(compare=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The types of the conditions."""
        return tuple(self.conditions)

    def body(self, now: str) -> dict[str, Any]:
        """A strategic merge patch; `now` is a time as Kubernetes writes it."""
        return {"status": {"conditions": [self._entry(kind, now) for kind in self.conditions]}}

    def _entry(self, kind: str, now: str) -> dict[str, str]:
        wanted, there = self.conditions[kind], self.present.get(kind)
        stays = there is not None and there.status == wanted.status and there.since != ""
        return {
            "type": kind,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": there.since if stays and there is not None else now,
        }


NodePatch = MetadataPatch | StatusPatch


def metadata_patch(wanted: Wanted, view: NodeView) -> MetadataPatch | None:
    """The keys that differ from what is there; None if none does."""
    patch = MetadataPatch(
        annotations=_difference(wanted.annotations, view.annotations),
        labels=_difference(wanted.labels, view.labels),
    )
    return patch if patch.annotations or patch.labels else None


def status_patch(wanted: Wanted, view: NodeView) -> StatusPatch | None:
    """The conditions that differ from what is there; None if none does."""
    differ = {
        kind: condition
        for kind, condition in wanted.conditions.items()
        if view.conditions.get(kind) != condition
    }
    return StatusPatch(differ, view.conditions) if differ else None


def oversized(wanted: Wanted, largest: int) -> TooLarge | None:
    """The first annotation with more than so many bytes."""
    for key, value in wanted.annotations.items():
        size = len(key.encode()) + len((value or "").encode())
        if size > largest:
            return TooLarge(key, size)
    return None


def _difference(wanted: _Keys, there: Mapping[str, str]) -> _Keys:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


_CONTEST = 3  # times that the same was undone: a person who edits by hand stops before


@dataclass(frozen=True, slots=True)
class WriteIntervals:
    """Times in seconds. Metadata and status are rate-limited separately: after a quiet time `burst`
    requests of a kind go at once; only continuous changes are held to one per `interval`.
    """

    interval: float = 0.5
    burst: int = 10
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most
    refused_again: float = 300.0  # what the server refuses for good: rights may be mended


class NodeWriter:
    """Keeps the Node `name` as wanted while `run` runs.

    `want` sets what is wanted, `observe` what is there (from a follower with the same `interest`).
    `on_fault` gets a fault when writing breaks or breaks in another way, and None when a write
    succeeds again. `on_contest` gets the keys that another program sets back again and again.
    `wall` gives the time of day in UTC, for conditions.
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str,
        *,
        interest: Interest = Interest(),  # noqa: B008 - a frozen value
        on_fault: Callable[[ClusterFault | None], None] = lambda _: None,
        on_contest: Callable[[tuple[str, ...]], None] = lambda _: None,
        intervals: WriteIntervals = WriteIntervals(),
        largest: int = 128 * 1024,  # bytes; all writers together have 256 KiB
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._name = name
        self._interest = interest
        self._on_fault = on_fault
        self._on_contest = on_contest
        self._intervals = intervals
        self._largest = largest
        self._clock = clock
        self._wall = wall
        self._allowances = {
            kind: Allowance(interval=intervals.interval, burst=intervals.burst)
            for kind in (MetadataPatch, StatusPatch)
        }
        self._after_fault, self._after_contest = (
            Backoff(*intervals.retry, spread=1.0, jitter=jitter) for _ in range(2)
        )
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._wanted = Wanted()
        self._view: NodeView | None = None
        self._not_before = float("-inf")
        self._missing_until = float("-inf")  # no Node, by the server; until another is seen
        self._contest_until = float("-inf")
        self._undone = 0  # how often other programs undid the same keys lately
        self._undone_at = float("-inf")
        self._undone_keys: tuple[str, ...] = ()
        self._refused: dict[type[NodePatch], tuple[NodePatch, float]] = {}
        self._written: dict[type[NodePatch], NodePatch] = {}
        self._last_kind: type[NodePatch] | None = None
        self._fault: ClusterFault | None = None

    def want(self, wanted: Wanted) -> TooLarge | None:
        """Want this from now on, in place of what was wanted before.

        An annotation that is too large is returned, and what was wanted before stays. Raises
        ValueError for a key or a condition that the `interest` leaves out of views.
        """
        self._check_interest(wanted)
        too_large = oversized(wanted, self._largest)
        if too_large is None and wanted != self._wanted:
            self._wanted = wanted
            self._written.clear()
            self._contest_until = float("-inf")  # a change does not wait for an old contest
            self._wake()
        return too_large

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this; None: there is none. Older news than our own are passed over."""
        known = self._view
        if view is not None and known is not None and view.uid == known.uid:
            if not is_newer(view.resource_version, known.resource_version):
                return
        else:
            self._written.clear()
        self._missing_until = float("-inf")
        self._view = view
        self._wake()

    @property
    def fault(self) -> ClusterFault | None:
        """Why the last request failed; None if it did not."""
        return self._fault

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
        """Write until cancelled."""
        while True:
            self._changed.clear()
            patch = self._next()
            if patch is None:
                self._settled.set()
                await self._change(self._refused_until())
                continue
            earliest = self._may_go_at(patch)
            if earliest > self._clock():
                await self._change(earliest)
            else:
                await self._send(patch)

    def _wake(self) -> None:
        self._settled.clear()
        self._changed.set()

    def _check_interest(self, wanted: Wanted) -> None:
        unseen = [k for k in wanted.annotations if not k.startswith(self._interest.annotations)]
        unseen += [k for k in wanted.labels if not k.startswith(self._interest.labels)]
        unseen += wanted.conditions.keys() - self._interest.conditions
        if unseen:
            raise ValueError(f"wanted but never seen: {', '.join(unseen)}")

    def _next(self) -> NodePatch | None:
        """What to send next: what may go first, and of two that may go now, by turns."""
        if self._view is None or self._clock() < self._missing_until:
            return None
        found = (metadata_patch(self._wanted, self._view), status_patch(self._wanted, self._view))
        patches = [patch for patch in found if patch is not None and not self._is_refused(patch)]
        now = self._clock()
        return min(
            patches,
            key=lambda p: (max(now, self._may_go_at(p)), type(p) is self._last_kind),
            default=None,
        )

    def _may_go_at(self, patch: NodePatch) -> float:
        paced = self._allowances[type(patch)].next_at()
        return max(self._not_before, self._contest_until, paced)

    def _is_refused(self, patch: NodePatch) -> bool:
        refused, again = self._refused.get(type(patch), (None, 0.0))
        return patch == refused and self._clock() < again

    def _refused_until(self) -> float | None:
        """When the first of what was refused may be tried again."""
        now = self._clock()
        refused = (self._missing_until, *(again for _, again in self._refused.values()))
        return min((again for again in refused if again > now), default=None)

    async def _change(self, until: float | None) -> None:
        """Wait for a change, at most until then."""
        try:
            async with asyncio.timeout(None if until is None else until - self._clock()):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _send(self, patch: NodePatch) -> None:
        self._allowances[type(patch)].take(self._clock())
        self._last_kind = type(patch)
        try:
            answer = await self._sent(patch)
            view = view_of(answer, self._interest)
        except ClusterFault as fault:
            self._failed(patch, fault)
        else:
            self._succeeded(patch, view)

    async def _sent(self, patch: NodePatch) -> object:
        match patch:
            case MetadataPatch():
                return await self._access.patch_node(self._name, patch.body())
            case StatusPatch():
                now = self._wall().strftime("%Y-%m-%dT%H:%M:%SZ")
                return await self._access.patch_node_status(self._name, patch.body(now))
            case _:
                assert_never(patch)

    def _failed(self, patch: NodePatch, fault: ClusterFault) -> None:
        now = self._clock()
        match fault:
            case RequestRefused() | NotAllowed():
                self._refused[type(patch)] = (patch, now + self._intervals.refused_again)
            case ObjectMissing():
                # The follower reports when there is one again, unless a proxy made that up.
                self._missing_until = now + self._intervals.refused_again
            case _:
                # A conflict too: what is there by then may be seen by then.
                self._not_before = now + self._after_fault.next(fault.retry_after or 0.0)
        before, self._fault = self._fault, fault
        if type(before) is not type(fault):
            self._on_fault(fault)

    def _succeeded(self, patch: NodePatch, view: NodeView) -> None:
        self._after_fault.reset()
        self._refused.pop(type(patch), None)
        now = self._clock()
        if self._written.get(type(patch)) == patch:
            # Another program undoes what we write: write again, with backoff.
            if now - self._contest_until > 2 * self._intervals.retry[1]:
                self._after_contest.reset()
            self._contest_until = now + self._after_contest.next()
            self._undone = self._undone + 1 if self._is_recent() else 1
            self._undone_at, self._undone_keys = now, patch.keys
            if self._undone == _CONTEST:
                self._on_contest(patch.keys)
        self._written[type(patch)] = patch
        if self._fault is not None:
            self._fault = None
            self._on_fault(None)
        self._observe_answer(view)

    def _observe_answer(self, view: NodeView) -> None:
        """A follower may have been faster, and know more by now."""
        known = self._view
        if known is None or known.uid != view.uid:
            return
        if is_newer(view.resource_version, known.resource_version):
            self._view = view
