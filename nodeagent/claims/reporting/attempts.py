"""What the kubelet asked for each claim, and what came of it: times, counts, refusals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from nodeagent.claims.reporting.reasons import REPORT_FAULT
from nodeagent.errors import NodeagentError
from nodeagent.views.shapes import Problem

FORGOTTEN_AFTER: Final = 600.0  # seconds; the kubelet repeats a call every few


class Operation(StrEnum):
    """What the kubelet asks for."""

    PREPARE = "prepare"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The newest attempt at a claim, where it runs or was refused. `since` is when the first of
    these attempts was begun, `last` when the newest one ended, in seconds since 1970.
    """

    namespace: str
    name: str
    operation: Operation
    since: float
    last: float
    running: bool = True
    refusal: Problem | None = None


Ended = Callable[[Operation, float, str], None]
"""Gets what ended, how many seconds it took and why it failed, "" where it did not."""


class Attempts:
    """Those at all claims, by uid; at most one at each at a time.

    `clock` gives seconds and does not jump, `wall` seconds since 1970. `reason_of` gives a failure
    one of a few words.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        reason_of: Callable[[Exception], str],
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._reason_of = reason_of
        self._newest: dict[str, Attempt] = {}
        self.on_end: list[Ended] = []

    @contextmanager
    def attempt(self, operation: Operation, namespace: str, name: str, uid: str) -> Iterator[None]:
        """Around the work on a claim."""
        began, now = self._clock(), self._wall()
        before = self._newest.get(uid)
        if before is None or before.operation is not operation:
            before = Attempt(namespace, name, operation, now, now)
        self._newest[uid] = replace(before, running=True)
        try:
            yield
        except Exception as error:
            reason = self._reason_of(error)
            self._keep(uid, replace(before, refusal=_refusal(error, reason)))
            self._report(operation, began, reason)
            raise
        except BaseException:  # the agent stops
            self._keep(uid, before)
            raise
        self._newest.pop(uid, None)
        self._report(operation, began, "")

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Namespace and name of the claims that are attempted."""
        return {(one.namespace, one.name) for one in self._newest.values()}

    @property
    def any_refused(self) -> bool:
        """Whether a claim waits, or its release does."""
        return any(one.refusal for one in self._newest.values())

    def newest(self, recorded: Collection[str]) -> Mapping[str, Attempt]:
        """By uid. A claim that is not `recorded`, and that the kubelet asks for no more, is
        forgotten.
        """
        until = self._wall() - FORGOTTEN_AFTER
        self._newest = {
            uid: one
            for uid, one in self._newest.items()
            if uid in recorded or one.running or one.last >= until
        }
        return self._newest

    def _keep(self, uid: str, ended: Attempt) -> None:
        self._newest[uid] = replace(ended, last=self._wall(), running=False)

    def _report(self, operation: Operation, began: float, reason: str) -> None:
        for notify in self.on_end:
            notify(operation, self._clock() - began, reason)


def _refusal(error: Exception, reason: str) -> Problem:
    if isinstance(error, NodeagentError):
        return Problem(code=reason, message=error.message, remedy=error.remedy)
    return Problem(code=reason, message=f"it failed: {error!r}", remedy=REPORT_FAULT)
