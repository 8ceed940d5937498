"""What the API can ask of the agent; the status as bytes, rendered when the state changed."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.preview import Preview

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Every function answers from memory and at once, except `preview`, which computes.

    `status` takes a GPU's UUID or None for all, and gives None for a GPU that is not there.
    `preview` gives None as long as the node was never observed. `not_alive` and `not_ready` give
    the reasons, each a sentence; none when all is well.

    `mps` takes a device in any spelling or None for all, and gives None for one that is not there.
    `restart_mps` takes a device's UUID and whether its clients may be lost, `drain_mps` between
    them how many seconds to wait for the clients (None: however long it takes). They come back
    when it is done, and raise UnknownDevice, StillInUse, DrainTimedOut, or another NodeagentError
    when it failed. A drain that is cancelled is given up.

    `scrape` gives the metrics' text, compressed by gzip on demand.
    """

    status: Callable[[str | None], Rendered | None]
    plan: Callable[[], Json]
    preview: Callable[[bytes, str | None], Preview | None]
    not_alive: Callable[[], tuple[str, ...]]
    not_ready: Callable[[], tuple[str, ...]]
    events: EventLog
    mps: Callable[[str | None], Json | None]
    restart_mps: Callable[[str, bool], Awaitable[Json]]
    drain_mps: Callable[[str, float | None, bool], Awaitable[Json]]
    scrape: Callable[[bool], bytes]


State = TypeVar("State")

_SHARE = 20  # rendering takes at most a twentieth of the time,
_LONGEST = 0.1  # but no status is older than this, in seconds


@dataclass(frozen=True)
class Rendered:
    """One answer: JSON as bytes, compressed and hashed once for all clients."""

    body: bytes

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.body, 1, mtime=0)

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


class RenderedStatus(Generic[State]):
    """The newest state, rendered for all GPUs or for one of them.

    `current` gives the state, a value that compares; `report` makes the JSON of it, None where it
    has no such GPU. `clock` gives seconds and does not jump. While steps are taken, the state
    changes hundreds of times a second: it is looked at again only after 20 times as long as that
    took.
    """

    def __init__(
        self,
        current: Callable[[], State],
        report: Callable[[State, str | None], dict[str, Any] | None],
        clock: Callable[[], float],
    ) -> None:
        self._current = current
        self._report = report
        self._clock = clock
        self._state: State | None = None
        self._pages: dict[str | None, Rendered] = {}
        self._look_from = 0.0

    def page(self, gpu: str | None) -> Rendered | None:
        """The status, of one GPU by its UUID or of all; None where there is no such GPU."""
        began = self._clock()
        state = self._state
        if state is None or began >= self._look_from:
            state = self._current()
            if state != self._state:
                self._state = state
                self._pages.clear()
            self._spent(began)
        if gpu in self._pages:
            return self._pages[gpu]
        report = self._report(state, gpu)
        if report is None:
            return None
        self._pages[gpu] = page = Rendered(json.dumps(report).encode())
        self._spent(began)
        return page

    def _spent(self, began: float) -> None:
        now = self._clock()
        self._look_from = now + min(_LONGEST, _SHARE * (now - began))
