"""What the node should offer to pods after a change, compared with every new view of the Node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from nodeagent.cluster.drain.allocatable import mismatches
from nodeagent.plan.problems import Problem


class AwaitedOffer:
    """Nothing is asked for. `changed` is called when the wait is over or the problems are others.

    For `deadline` seconds a difference is no problem; then it is one until it is gone.
    """

    def __init__(self, *, deadline: float, changed: Callable[[str], None]) -> None:
        self._deadline = deadline
        self._changed = changed
        self._expected: Mapping[str, int] | None = None
        self._allocatable: Mapping[str, str] | None = None  # None: not known
        self._timer: asyncio.TimerHandle | None = None
        self.problems: tuple[Problem, ...] = ()

    @property
    def expected(self) -> Mapping[str, int] | None:
        """What is still waited for; None once it has come or the time is over."""
        return self._expected if self._timer is not None else None

    def begin(self, expected: Mapping[str, int]) -> None:
        """Wait for this; the same as is waited for already changes nothing."""
        if self.expected == expected:
            return
        self.forget()
        self._expected = expected
        self._timer = asyncio.get_running_loop().call_later(self._deadline, self._time_is_over)
        self._compare()

    def forget(self) -> None:
        """The GPUs change again, or nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._expected, self.problems = None, None, ()

    def saw(self, allocatable: Mapping[str, str] | None) -> None:
        """The node offers this now."""
        self._allocatable = allocatable
        self._compare()

    def _time_is_over(self) -> None:
        self._timer = None
        self._compare()
        if not self.problems:  # nobody knows what the node offers
            self._changed("the node's offer was waited for long enough")

    def _compare(self) -> None:
        if self._expected is None or self._allocatable is None:
            return
        found = mismatches(self._expected, self._allocatable)
        if not found:
            self.forget()
            self._changed("the node offers what it should")
        elif self._timer is None and found != self.problems:
            self.problems = found
            self._changed("the node does not offer what it should")
