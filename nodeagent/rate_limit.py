"""How often one kind of event is logged, however often it happens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class RateLimit:
    """Lets one line a key pass in `every` seconds, and counts those that it holds back.

    Of `most_keys` keys at most anything is kept; the ones seen longest ago are forgotten.
    """

    def __init__(self, every: float, *, most_keys: int = 256) -> None:
        self._every = every
        self._most_keys = most_keys
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable, now: float) -> int:
        """How many events the line logged now stands for, this one included; 0: log none.

        `now` is in seconds of a clock that does not jump.
        """
        logged_at, held_back = self._seen.pop(key, (now - self._every, 0))
        due = now - logged_at >= self._every
        self._seen[key] = (now, 0) if due else (logged_at, held_back + 1)
        if len(self._seen) > self._most_keys:
            self._seen.popitem(last=False)
        return held_back + 1 if due else 0
