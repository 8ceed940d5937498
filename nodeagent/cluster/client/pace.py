"""How long to wait: before trying again, and between requests that nobody is in a hurry for.

Pure: the time and the source of chance are passed in. All times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable


class BackOff:
    """Full jitter: anything between nothing and a ceiling that doubles with each failure.

    The ceiling starts at `first` and ends at `longest`. `chance` gives numbers in [0, 1). Drawn
    from the whole range, so that a thousand agents that lost one server come back spread out.
    """

    def __init__(self, *, first: float, longest: float, chance: Callable[[], float]) -> None:
        self._first = first
        self._longest = longest
        self._chance = chance
        self._ceiling = first

    def next(self, at_least: float = 0.0) -> float:
        """The wait after one more failure; the server may have asked for `at_least`."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * 2, self._longest)
        # On top of what was asked for, because the server asked everybody for the same.
        return at_least + self._chance() * ceiling

    def reset(self) -> None:
        """All is well: the next failure is the first again."""
        self._ceiling = self._first


class Allowance:
    """One turn every `interval`, and up to `burst` at once after a quiet time."""

    def __init__(self, *, interval: float, burst: int = 1) -> None:
        self._interval = interval
        self._credit = interval * (burst - 1)
        self._due = float("-inf")  # when the next turn would be without any burst

    def next_at(self) -> float:
        """The earliest time of the next turn."""
        return self._due - self._credit

    def take(self, now: float) -> None:
        """A turn is taken now."""
        self._due = max(self._due, now) + self._interval
