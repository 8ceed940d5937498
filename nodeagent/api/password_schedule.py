"""Which password is checked next, and when a wrong one is answered. Pure: times are arguments.

A hash takes 50 ms and more, so guesses from a few clients can fill any time that hashing is given.
A guess looks like a right password until it is hashed, and both may come from one address. The
difference is that a guesser has to wait for its answer before it learns anything:

- Refusals are answered one after the other, at half the pace of checks, and only while hardly any
  password waits. So there are always fewer new guesses than checks, however slow the machine is,
  and a password that comes now is checked soon if the newest comes first.
- Every other turn takes the newest from the peer with the fewest recent failures, so that guesses
  from elsewhere do not delay a client that has given no wrong password.
- Every fourth turn takes the oldest, for clients that wait while others come and leave at once.
- After each check hashing rests for as long as it took: half a core at most.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MOST_PEERS = 1024  # whose failures are remembered
_HALF_LIFE = 60.0  # seconds in which a failure loses half of its weight
_FIRST_TURN = 0.1  # seconds that a check with its rest is thought to take before one was made


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A password from `peer` that waits to be checked."""

    peer: str


class PasswordSchedule:
    """The attempts that wait, and the pace of checks and refusals.

    How many attempts wait is not bounded here: a connection has one, and connections are bounded.
    `now` is in seconds of a clock that does not jump, and never smaller than before.
    """

    def __init__(self) -> None:
        self._waiting: dict[Attempt, None] = {}  # oldest first
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._turn = 0
        self._rest_until = 0.0
        self._refuse_from = 0.0
        self._began = 0.0
        self._turn_time = _FIRST_TURN

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be checked."""
        return not self._waiting

    def arrive(self, peer: str) -> Attempt:
        """A password from this peer is to be checked."""
        attempt = Attempt(peer)
        self._waiting[attempt] = None
        return attempt

    def leave(self, attempt: Attempt) -> None:
        """Its client does not wait any more; an attempt that was checked is none already."""
        self._waiting.pop(attempt, None)

    def rest(self, now: float) -> float:
        """Seconds until the next check may begin."""
        return max(0.0, self._rest_until - now)

    def next(self, now: float) -> Attempt:
        """The attempt to check now; there has to be one."""
        attempt = self._choose(now)
        del self._waiting[attempt]
        self._turn += 1
        self._began = now
        return attempt

    def checked(self, attempt: Attempt, now: float, *, cost: float, right: bool) -> None:
        """A check ended that took `cost` seconds of a processor."""
        self._rest_until = now + cost
        self._turn_time = self._rest_until - self._began
        if not right:
            self._failures[attempt.peer] = self._weight(attempt.peer, now) + 1, now
            self._failures.move_to_end(attempt.peer)
            if len(self._failures) > _MOST_PEERS:
                self._failures.popitem(last=False)

    def refuse_in(self, now: float) -> float:
        """Seconds after which to ask again whether a refusal may be answered; 0: it may now."""
        if len(self._waiting) > 1:
            return self._turn_time
        return max(0.0, self._refuse_from - now)

    def refused(self, now: float) -> None:
        """A refusal is answered, and a new guess may follow."""
        self._refuse_from = now + 2 * self._turn_time

    def _choose(self, now: float) -> Attempt:
        newest = reversed(self._waiting)
        match self._turn % 4:
            case 0 | 2:
                return next(newest)
            case 1:
                return min(newest, key=lambda attempt: self._weight(attempt.peer, now))
            case _:
                return next(iter(self._waiting))

    def _weight(self, peer: str, now: float) -> float:
        count, at = self._failures.get(peer, (0.0, now))
        return float(count * 0.5 ** ((now - at) / _HALF_LIFE))
