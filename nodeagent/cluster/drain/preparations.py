"""When a change that could not be prepared is tried again: not with each look at the GPUs.

Each attempt may send pods away and bring them back, so what failed is left alone for a while that
grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodeagent.plan.problems import Code, Problem


class Preparations:
    """`again` are the seconds after a failure before the next attempt, at first and at most."""

    def __init__(self, *, again: tuple[float, float], wake: Callable[[str], None]) -> None:
        self._first, self._longest = again
        self._wake = wake
        self._pause = self._first
        self._asked: object = None  # what the attempts so far were for
        self._problems: tuple[Problem, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def put_off(self, asked: object) -> tuple[Problem, ...]:
        """Why what is asked for is not tried yet; empty when it may be. Something else always may,
        and that of the same text is another configuration's.
        """
        if asked != self._asked:
            self._pause = self._first
            self.forget()
        return self._problems

    def ended(self, asked: object, problems: tuple[Problem, ...]) -> None:
        """An attempt is over; with problems, it failed."""
        self.forget()
        self._asked = asked
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

    def server_answers(self) -> None:
        """The API server does again: what failed for its silence is tried at once."""
        if any(problem.code is Code.CLUSTER for problem in self._problems):
            self._pause = self._first
            self._try_again()

    def _try_again(self) -> None:
        self.forget()
        self._wake("what could not be prepared is tried again")
