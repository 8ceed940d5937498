"""Basic auth as Prometheus' web-config has it: names with bcrypt hashes of their passwords.

A check takes as long as the hash wants it to (50 ms and more), so it runs in one thread of its own,
in the order and at the pace of `PasswordSchedule`. Passwords that were right or wrong are
remembered by a keyed digest, so that a client which asks every few seconds costs one check.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from nodeagent.api.limits import Limits

_MOST_PEERS = 1024  # whose failures are remembered
_HALF_LIFE = 60.0  # seconds in which a failure loses half of its weight
_FIRST_TURN = 0.1  # seconds that a check with its rest is thought to take before one was made


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """A password from `peer` that waits to be checked."""

    peer: str


class PasswordSchedule:
    """Which password is checked next, and when a wrong one is answered. Pure: times are arguments.

    A guess looks like a right password until it is hashed, and both may come from one address. The
    difference is that a guesser has to wait for its answer before it learns anything:

    - Refusals are answered one after the other, at half the pace of checks, and only while hardly
      any password waits. So there are always fewer new guesses than checks, however slow the
      machine is, and a password that comes now is checked soon if the newest comes first.
    - Every other turn takes the newest from the peer with the fewest recent failures, so that
      guesses from elsewhere do not delay a client that has given no wrong password.
    - Every fourth turn takes the oldest, for clients that wait while others come and leave at once.
    - After each check hashing rests for as long as it took: half a core at most.

    How many attempts wait is not bounded here: a connection has one, and connections are bounded.
    `now` is in seconds of a clock that does not jump, and never smaller than before.
    """

    def __init__(self) -> None:
        self._waiting: dict[Guess, None] = {}  # oldest first
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._turn = 0
        self._rest_until = 0.0
        self._refuse_from = 0.0
        self._began = 0.0
        self._turn_time = _FIRST_TURN

    @property
    def idle(self) -> bool:
        return not self._waiting

    def arrive(self, peer: str) -> Guess:
        attempt = Guess(peer)
        self._waiting[attempt] = None
        return attempt

    def leave(self, attempt: Guess) -> None:
        """Its client does not wait any more; an attempt that was checked is none already."""
        self._waiting.pop(attempt, None)

    def rest(self, now: float) -> float:
        return max(0.0, self._rest_until - now)

    def next(self, now: float) -> Guess:
        """The attempt to check now; there has to be one."""
        attempt = self._choose(now)
        del self._waiting[attempt]
        self._turn += 1
        self._began = now
        return attempt

    def checked(self, attempt: Guess, now: float, *, cost: float, right: bool) -> None:
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

    def _choose(self, now: float) -> Guess:
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


_MOST_KEPT = 256  # passwords that were right
_MOST_WRONG = 1024
_LONGEST = 72  # bytes of a password that bcrypt looks at; more is refused, as Go's does


class TooManyAsk(Exception):
    """Too many passwords wait to be checked."""


class PasswordCheck:
    """Says whether an Authorization header is one of the users'. Belongs to one event loop.

    `users` can be set anew at any time. `compare` is bcrypt's checkpw, which takes the password and
    the hash; raises ImportError where the package is missing.
    """

    def __init__(
        self,
        users: Mapping[str, bytes],
        limits: Limits,
        compare: Callable[[bytes, bytes], bool] | None = None,
    ) -> None:
        if compare is None:
            from bcrypt import checkpw

            compare = checkpw
        self.users = users
        self._compare = compare
        self._limits = limits
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._wrong: OrderedDict[bytes, bool] = OrderedDict()
        self._schedule = PasswordSchedule()
        self._asked: dict[Guess, tuple[str, bytes, asyncio.Future[bool]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="password")
        self._refusing = asyncio.Lock()  # in the order in which they were refused
        self._checking: asyncio.Task[None] | None = None

    async def accepts(self, header: str, peer: str = "") -> bool:
        """Whether the header proves who asks, from the address `peer`.

        A no may take long while many guess. Raises TooManyAsk, then too.
        """
        given = _credentials(header)
        if given is None:
            return False
        mark = self._mark(*given)
        if mark in self._known:
            self._known.move_to_end(mark)
            return True
        try:
            right = mark not in self._wrong and await self._checked(*given, peer)
        except TooManyAsk:
            await self._hold()
            raise
        if not right:
            await self._hold()
        return right

    def close(self) -> None:
        """Check nothing any more; the check under way ends by itself."""
        if self._checking:
            self._checking.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _hold(self) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.refusal_hold), self._refusing:
                while wait := self._schedule.refuse_in(clock()):  # noqa: ASYNC110 - a time to wait
                    await asyncio.sleep(wait)
                self._schedule.refused(clock())

    async def _checked(self, name: str, password: bytes, peer: str) -> bool:
        attempt = self._schedule.arrive(peer)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[attempt] = name, password, answer
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_all(), name="check passwords")
        try:
            async with asyncio.timeout(self._limits.password):
                return await answer
        except TimeoutError:
            raise TooManyAsk from None
        finally:
            self._schedule.leave(attempt)
            self._asked.pop(attempt, None)

    async def _check_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._schedule.idle:
                if rest := self._schedule.rest(loop.time()):
                    await asyncio.sleep(rest)
                    continue
                attempt = self._schedule.next(loop.time())
                name, password, _ = self._asked[attempt]
                mark = self._mark(name, password)
                if mark in self._known or mark in self._wrong:  # checked while it waited
                    self._answer(attempt, mark in self._known)
                    continue
                right, cost = await loop.run_in_executor(
                    self._thread, self._compared, self.users.get(name), password
                )
                self._schedule.checked(attempt, loop.time(), cost=cost, right=right)
                _remember(
                    self._known if right else self._wrong,
                    mark,
                    _MOST_KEPT if right else _MOST_WRONG,
                )
                self._answer(attempt, right)
        finally:
            self._checking = None

    def _answer(self, attempt: Guess, right: bool) -> None:
        """Let the client's request go on, if it still waits."""
        if (asked := self._asked.get(attempt)) and not asked[2].done():
            asked[2].set_result(right)

    def _compared(self, hashed: bytes | None, password: bytes) -> tuple[bool, float]:
        """Whether it is right, and the CPU seconds that the check took."""
        if len(password) > _LONGEST or b"\0" in password:
            return False, 0.0
        began = time.thread_time()
        # For an unknown name another's hash, so that the answer takes as long.
        right = self._compare(password, hashed or next(iter(self.users.values())))
        return right and hashed is not None, time.thread_time() - began

    def _mark(self, name: str, password: bytes) -> bytes:
        """The cache key of a name and password; it changes with the user's hash."""
        hashed = self.users.get(name, b"")
        text = b"\0".join((name.encode(), hashed, password))
        return hmac.digest(self._secret, text, hashlib.sha256)


def _remember(kept: OrderedDict[bytes, bool], mark: bytes, most: int) -> None:
    kept[mark] = True
    while len(kept) > most:
        kept.popitem(last=False)


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True)
        name, colon, password = text.partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:  # no base64, no ASCII before it is decoded, or no UTF-8 after
        return None
