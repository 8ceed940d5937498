"""Signs of life of the agent's loops, and who is overdue.

A loop says, whenever it gets on, within how many seconds it will do so again: a reconciliation
may take minutes, and then has until then; a loop that waits says until when it waits.
"""

from __future__ import annotations

from collections.abc import Callable


class Heartbeats:
    """`clock` gives seconds, such as the event loop's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def beat(self, loop: str, *, within: float) -> None:
        """`loop` lives, and will beat again within so many seconds."""
        self._due[loop] = self._clock() + within

    def forget(self, loop: str) -> None:
        """`loop` has ended as it should."""
        self._due.pop(loop, None)

    def overdue(self) -> tuple[str, ...]:
        """A sentence for each loop that did not beat in time; empty while all is well."""
        now = self._clock()
        return tuple(
            f"the {loop} has not been heard of for {now - due:.0f} s longer than it should take"
            for loop, due in self._due.items()
            if now > due
        )
