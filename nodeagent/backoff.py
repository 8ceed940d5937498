"""How long to wait between retries. Pure: the source of randomness is passed in."""

from __future__ import annotations

from collections.abc import Callable

_MAX_EXPONENT = 60  # a float's exponent is bounded


class Backoff:
    """Waits in seconds: `first`, then doubling up to `longest`.

    `spread` is the part of each wait that is left to chance, so that many nodes do not act in step:
    with 1.0 (full jitter) a wait is anything between nothing and the whole. `jitter` gives numbers
    in [0, 1).
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        spread: float = 0.0,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._first = first
        self._longest = longest
        self._spread = spread
        self._jitter = jitter
        self.failures = 0  # in a row

    def after(self, failures: int) -> float:
        """The wait after so many failures in a row (0 counts as 1)."""
        exponent = min(max(failures, 1) - 1, _MAX_EXPONENT)
        whole = min(self._first * 2.0**exponent, self._longest)
        return whole * (1 - self._spread * self._jitter())

    def next(self, at_least: float = 0.0) -> float:
        """The wait after one more failure, on top of what the other side asked all clients for."""
        self.failures += 1
        return at_least + self.after(self.failures)

    def reset(self) -> None:
        self.failures = 0
