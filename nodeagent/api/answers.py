"""What the API can ask of the agent; the status as bytes, rendered when the state changed."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from nodeagent.reconcile.event_log import EventLog
from nodeagent.views.shapes import Json


class Answers(Protocol):
    """Every method answers from memory and at once, except `plan` and `preview`, which compute in a
    thread, `advice`, which does in turns, and what changes MPS, which comes back when it is done.
    """

    @property
    def events(self) -> EventLog: ...

    def status(self, gpu: str | None) -> bytes | None:
        """The status of one GPU by its UUID, or of all; None for a GPU that is not there."""

    def history(self, gpu: str | None) -> Json | None:
        """The last minutes of one GPU by its UUID, or of all; None where nothing was read of it."""

    def advice(self, namespace: str | None) -> Coroutine[Any, Any, Json]:
        """What would do for the holders of this namespace, or for all."""

    def plan(self) -> Coroutine[Any, Any, Json]:
        """The plan in force, computed once for all who ask; one who leaves does not end that."""

    def preview(self, text: bytes, configuration: str | None) -> tuple[bool, Json] | None:
        """Whether this text is a document, and the plan for it; None as long as the node was never
        observed. May take long.
        """

    def not_alive(self) -> tuple[str, ...]:
        """The reasons, each a sentence; none when all is well. `not_ready` likewise."""

    def not_ready(self) -> tuple[str, ...]: ...

    def scrape(self, zipped: bool) -> bytes:
        """The metrics' text, compressed by gzip on demand."""

    def mps(self, device: str | None) -> Json | None:
        """The daemons of a device in any spelling, or all; None for one that is not there."""

    def restart_mps(self, device: str, force: bool) -> Coroutine[Any, Any, Json]:
        """Restart the daemon of a device (a UUID); `force`: its clients may be lost.

        Raises UnknownDevice, StillInUse, or another NodeagentError when it failed.
        """

    def drain_mps(
        self, device: str, seconds: float | None, force: bool
    ) -> Coroutine[Any, Any, Json]:
        """Wait so long for the clients (None: however long it takes), then end the daemon.

        Raises DrainTimedOut, too. A drain that is cancelled is given up.
        """


State = TypeVar("State")

_SHARE = 100  # rendering takes at most a hundredth of the time,
_MAX_AGE = 0.1  # but no status is older than this, in seconds


class RenderedStatus(Generic[State]):
    """The newest state, rendered for all GPUs or for one of them.

    `current` gives the state, a value that compares; `report` makes the JSON of it, None where it
    has no such GPU. `clock` gives seconds and does not jump. While steps are taken, the state
    changes hundreds of times a second: it is read again only after 100 times as long as that
    took.
    """

    def __init__(
        self,
        current: Callable[[], State],
        report: Callable[[State, str | None], Json | None],
        clock: Callable[[], float],
    ) -> None:
        self._current = current
        self._report = report
        self._clock = clock
        self._state: State | None = None
        self._pages: dict[str | None, bytes] = {}
        self._refresh_from = 0.0

    def page(self, gpu: str | None) -> bytes | None:
        """The status, of one GPU by its UUID or of all; None where there is no such GPU."""
        began = self._clock()
        state = self._state
        if state is None or began >= self._refresh_from:
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
        self._pages[gpu] = page = json.dumps(report).encode()
        self._spent(began)
        return page

    def _spent(self, began: float) -> None:
        now = self._clock()
        self._refresh_from = now + min(_MAX_AGE, _SHARE * (now - began))
