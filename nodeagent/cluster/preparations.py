"""When a change that could not be prepared is tried again: not with each look at the GPUs.

Each attempt may send pods away and bring them back, so what failed is left alone for a while that
grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodeagent.planning.plan import NodePlan
from nodeagent.planning.problems import Problem


class Preparations:
    """`again` are the seconds after a failure before the next attempt, at first and at most."""

    def __init__(self, *, again: tuple[float, float], wake: Callable[[str], None]) -> None:
        self._first, self._longest = again
        self._wake = wake
        self._pause = self._first
        self._digest = ""
        self._problems: tuple[Problem, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def put_off(self, todo: NodePlan) -> tuple[Problem, ...]:
        """Why this is not tried yet; empty when it may be. Another plan always may."""
        if todo.digest != self._digest:
            self._pause = self._first
            self.forget()
        return self._problems

    def ended(self, todo: NodePlan, problems: tuple[Problem, ...]) -> None:
        """An attempt is over; with problems, it failed."""
        self.forget()
        self._digest = todo.digest
        if not problems:
            self._pause = self._first
            return
        self._problems = problems
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._try_again)
        self._pause = min(2 * self._pause, self._longest)

    def forget(self) -> None:
        """The next attempt may be at once, and nobody is woken for it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._problems = None, ()

    def _try_again(self) -> None:
        self.forget()
        self._wake("what could not be prepared is tried again")
