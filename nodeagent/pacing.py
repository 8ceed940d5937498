"""Waits between retries, and how often something may happen: a line in the log, a request.

Pure: time and the source of randomness are passed in.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

_MAX_EXPONENT = 60  # a float's exponent is bounded
_QUIET = 10  # times `every`, after which what was held back is of no interest any more


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


class RateLimit:
    """Lets one line a key pass in `every` seconds, and counts those that it holds back.

    Of `most_keys` keys at most anything is kept; the ones seen longest ago are forgotten, and those
    that hold nothing back, or were not seen for long: a claim that is gone is never seen again.
    """

    def __init__(self, every: float, *, most_keys: int = 256) -> None:
        self._every = every
        self._most_keys = most_keys
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int:
        """The number of events that a line logged now stands for, this one included; 0: log none.

        `now` is in seconds of a clock that does not jump.
        """
        logged_at, held_back = self._seen.pop(key, (now - self._every, 0))
        due = now - logged_at >= self._every
        self._seen[key] = (now, 0) if due else (logged_at, held_back + 1)
        while len(self._seen) > self._most_keys or self._oldest_is_over(now):
            self._seen.popitem(last=False)
        return held_back + 1 if due else 0

    def _oldest_is_over(self, now: float) -> bool:
        logged_at, held_back = next(iter(self._seen.values()))
        return now - logged_at > self._every * (_QUIET if held_back else 1)


class Allowance:
    """One turn every `interval` seconds, and up to `burst` at once after a quiet time."""

    def __init__(self, *, interval: float, burst: int = 1) -> None:
        self._interval = interval
        self._credit = interval * (burst - 1)
        self._due = float("-inf")  # when the next turn would be without any burst

    def next_at(self) -> float:
        return self._due - self._credit

    def take(self, now: float) -> None:
        self._due = max(self._due, now) + self._interval
