"""Who is let in by password, in which order passwords are checked, and at what pace."""

from __future__ import annotations

import asyncio
import base64
import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import bcrypt
import pytest

from nodeagent.api.limits import Limits
from nodeagent.api.passwords import Guess, PasswordCheck, PasswordSchedule, TooManyAsk
from tests.machine_load import stretched

LONG = 300.0  # virtual seconds


@dataclass
class Siege:
    """Guessers that ask again as soon as they are answered, or after their `patience` in seconds.

    A check costs about `cost` seconds of a processor, and takes `delay` more. Guessers have `peers`
    addresses; the right user comes every ten seconds or so from one of them, or from its own.
    """

    guessers: int = 64
    cost: float = 0.05
    delay: float = 0.0
    peers: int = 1
    patience: float = LONG
    own_address: bool = False
    waited: list[float] = field(default_factory=list)
    busy: float = 0.0
    right: int = 0

    def __post_init__(self) -> None:
        self._schedule = PasswordSchedule()
        self._random = random.Random(7)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = count()
        self._asked: dict[
            Guess, tuple[int, float]
        ] = {}  # guesser (-1: the right user) and start time
        self._checking = False
        self._refused: deque[tuple[int, float]] = deque()  # guesser, and until when it waits
        self._refusing = False

    def run(self) -> None:
        for guesser in range(self.guessers):
            self._soon(0.0, guesser)
        for at in self._visits():
            self.right += 1
            self._at(at, lambda now: self._ask(-1, now))
        while self._events and self._events[0][0] < LONG:
            now, _, happen = heapq.heappop(self._events)
            happen(now)

    def _visits(self) -> Iterator[float]:
        at = 0.05
        while at < LONG - 20:
            yield at
            at += self._random.uniform(5, 15)

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), happen))

    def _soon(self, when: float, guesser: int) -> None:
        self._at(when + self._random.uniform(0, 0.01), lambda now: self._ask(guesser, now))

    def _ask(self, who: int, now: float) -> None:
        own = who < 0 and self.own_address
        attempt = self._schedule.arrive("own" if own else str(max(who, 0) % self.peers))
        self._asked[attempt] = who, now
        if who >= 0:
            self._at(now + self.patience, lambda later: self._give_up(attempt, later))
        self._go_on(now)

    def _give_up(self, attempt: Guess, now: float) -> None:
        if attempt in self._asked:
            self._schedule.leave(attempt)
            self._soon(now, self._asked.pop(attempt)[0])

    def _go_on(self, now: float) -> None:
        if not self._checking and not self._schedule.idle:
            self._checking = True
            self._at(now + self._schedule.rest(now), self._check)

    def _check(self, now: float) -> None:
        if self._schedule.idle:
            self._checking = False
            return
        attempt = self._schedule.next(now)
        cost = self.cost * self._random.uniform(0.8, 1.2)
        self._at(now + cost + self.delay, lambda later: self._checked(attempt, cost, later))

    def _checked(self, attempt: Guess, cost: float, now: float) -> None:
        self.busy += cost
        who, since = self._asked.pop(attempt, (0, 0.0))
        self._schedule.checked(attempt, now, cost=cost, right=who < 0)
        if who < 0:
            self.waited.append(now - since)
        elif since:
            self._refused.append((who, since + self.patience))
            self._refuse(now)
        self._checking = False
        self._go_on(now)

    def _refuse(self, now: float, *, again: bool = False) -> None:
        """Answer refusals in their order, when they may be; those of clients that left are gone."""
        if self._refusing and not again:
            return
        self._refusing = bool(self._refused)
        while self._refused and self._refused[0][1] <= now:
            self._soon(now, self._refused.popleft()[0])
        if not self._refused:
            self._refusing = False
            return
        wait = self._schedule.refuse_in(now)
        if not wait:
            self._schedule.refused(now)
            self._soon(now, self._refused.popleft()[0])
            wait = self._schedule.refuse_in(now)
        self._at(now + max(wait, 0.001), lambda later: self._refuse(later, again=True))


@pytest.mark.parametrize(
    "siege",
    [
        Siege(),
        Siege(own_address=True),
        Siege(peers=64),
        Siege(peers=64, own_address=True),
        Siege(cost=0.2),
        Siege(guessers=220),
        Siege(cost=0.02, delay=0.1),
    ],
)
def test_guessers_do_not_keep_the_right_user_waiting(siege: Siege) -> None:
    """Whether they share its address or not: 2 s at most, and half a core at most."""
    siege.run()
    assert siege.right > 20
    assert len(siege.waited) == siege.right
    assert max(siege.waited) < 2
    assert siege.busy <= LONG / 2 + 2 * siege.cost  # the first check follows no rest


@pytest.mark.parametrize("patience", [10, 5, 3, 1, 0.1])
def test_guessers_that_leave_and_come_again_delay_it_seldom(patience: float) -> None:
    """They are not paced by their answers: nine times of ten it is 2 s, and always below 10 s."""
    siege = Siege(patience=patience)
    siege.run()
    assert len(siege.waited) == siege.right
    assert sorted(siege.waited)[siege.right * 9 // 10] < 2
    assert max(siege.waited) < 10
    assert siege.busy <= LONG / 2 + 2 * siege.cost


def test_who_gave_no_wrong_password_comes_before_those_who_did() -> None:
    """In every other turn but those of the oldest and newest; failures weigh less with time."""
    schedule = PasswordSchedule()
    for now in range(8):
        failed = schedule.arrive("guesser")
        assert schedule.next(now) is failed
        schedule.checked(failed, now, cost=0.1, right=False)
    oldest, quiet, *_, newest = [
        schedule.arrive(p) for p in ("guesser", "quiet", "guesser", "guesser")
    ]
    assert schedule.next(10) is newest
    assert schedule.next(10) is quiet
    schedule.next(10)
    assert schedule.next(10) is oldest


def test_a_mistake_is_answered_at_once() -> None:
    """Refusals are delayed only if others precede them or passwords wait."""
    schedule = PasswordSchedule()
    failed = schedule.arrive("a")
    schedule.next(0.5)
    schedule.checked(failed, 1.0, cost=0.1, right=False)
    assert schedule.rest(1.0) == pytest.approx(0.1)
    assert schedule.refuse_in(1.0) == 0
    schedule.refused(1.0)
    assert schedule.refuse_in(1.0) == pytest.approx(2 * 0.6)
    assert schedule.refuse_in(3.0) == 0
    waiting = [schedule.arrive("b") for _ in range(2)]
    assert schedule.refuse_in(3.0) > 0
    schedule.leave(waiting[0])
    assert schedule.refuse_in(3.0) == 0


LIMITS = Limits(refusal_hold=0.0)
USERS = {"prometheus": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4))}


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


HEADERS: tuple[tuple[str, bool], ...] = (
    (_basic(b"prometheus:right:one"), True),
    (_basic(b"prometheus:right:one").replace("Basic", "bAsIc"), True),
    (_basic(b"prometheus:wrong"), False),
    (_basic(b"prometheus:"), False),
    (_basic(b"nobody:right:one"), False),
    (_basic(b"prometheus"), False),
    (_basic(b"prometheus:" + b"x" * 100), False),
    (_basic(b"prometheus:right\0one"), False),
    (_basic(b"\xff:right:one"), False),
    ("Basic ?", False),
    ("Bearer x", False),
    ("", False),
)


async def test_who_is_let_in() -> None:
    """Only a known name with its own password; anything else is a no, never an error."""
    for header, accepted in HEADERS:
        check = PasswordCheck(USERS, LIMITS)
        assert await check.accepts(header) is accepted, header
        check.close()


class Hashing:
    """Replaces bcrypt: records its calls, and answers when the test allows it."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append(password)
        self.go_on.wait(stretched(30))
        return password == b"right:one" and hashed == USERS["prometheus"]


@pytest.fixture
def hashing() -> Iterator[Hashing]:
    """Its threads end with the test."""
    made = Hashing()
    yield made
    made.go_on.set()


async def test_each_password_is_hashed_once(hashing: Hashing) -> None:
    """A client that asks every few seconds costs one check, whether its password is right or not;
    a new hash of the user makes both worth a check again.
    """
    check = PasswordCheck(USERS, LIMITS, hashing)
    for _ in range(3):
        assert await check.accepts(_basic(b"prometheus:right:one"))
        assert not await check.accepts(_basic(b"prometheus:wrong"))
    assert sorted(hashing.asked) == [b"right:one", b"wrong"]
    check.users = {"prometheus": b"another"}
    assert not await check.accepts(_basic(b"prometheus:right:one"))
    assert len(hashing.asked) == 3
    check.close()


async def test_hashing_rests_for_as_long_as_it_took() -> None:
    """Half a core at most, whatever it costs and however many wait."""
    checks: list[tuple[float, float, float]] = []

    def compare(password: bytes, hashed: bytes) -> bool:
        began, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < 0.01:
            pass
        checks.append((began, time.thread_time() - used, time.monotonic()))
        return False

    check = PasswordCheck(USERS, LIMITS, compare)
    asking = (check.accepts(_basic(b"prometheus:%d" % n)) for n in range(4))
    assert not any(await asyncio.gather(*asking))
    check.close()
    assert len(checks) == 4
    for (_, cost, ended), (began, _, _) in itertools.pairwise(checks):
        assert began - ended >= cost


async def test_a_refusal_waits_for_the_passwords_that_wait(hashing: Hashing) -> None:
    """A guesser learns nothing, and guesses no more, while others are to be checked."""
    check = PasswordCheck(USERS, Limits(), hashing)
    hashing.go_on.clear()
    guesses = [b"%d" % n for n in range(5)]
    asking = {
        guess: asyncio.create_task(check.accepts(_basic(b"prometheus:" + guess)))
        for guess in guesses
    }
    async with asyncio.timeout(stretched(30)):
        while len(hashing.asked) < 2:
            if hashing.asked:  # again, for it may not have begun to wait
                hashing.go_on.set()
                hashing.go_on.clear()  # for this one alone
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert not asking[hashing.asked[0]].done()
    check.close()
    for task in asking.values():
        task.cancel()
    await asyncio.gather(*asking.values(), return_exceptions=True)


async def test_the_same_guess_from_many_is_hashed_once(hashing: Hashing) -> None:
    """Those that wait for the same password get the answer of the first."""
    check = PasswordCheck(USERS, LIMITS, hashing)
    asking = (check.accepts(_basic(b"prometheus:wrong")) for _ in range(20))
    assert not any(await asyncio.gather(*asking))
    assert len(hashing.asked) == 1
    check.close()


async def test_a_password_that_waits_too_long_is_turned_away(hashing: Hashing) -> None:
    """The agent does not keep what it cannot check in time."""
    hashing.go_on.clear()
    check = PasswordCheck(USERS, Limits(password=0.05, refusal_hold=0.0), hashing)
    asking = [asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n))) for n in range(3)]
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [TooManyAsk] * 3
    hashing.go_on.set()
    async with asyncio.timeout(stretched(30)):
        while True:
            with suppress(TooManyAsk):  # a busy machine may take longer than is waited for here
                assert await check.accepts(_basic(b"prometheus:right:one"))
                break
    check.close()


async def test_clients_that_leave_do_not_make_room_for_more_checks(hashing: Hashing) -> None:
    """A check that has begun goes on without them: there is never more than one."""
    hashing.go_on.clear()
    check = PasswordCheck(USERS, LIMITS, hashing)
    for n in range(8):
        asking = asyncio.create_task(check.accepts(_basic(b"prometheus:%d" % n)))
        while not hashing.asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert hashing.asked == [b"0"]
    hashing.go_on.set()
    assert await check.accepts(_basic(b"prometheus:right:one"))
    assert hashing.asked == [b"0", b"right:one"]
    check.close()


@pytest.mark.parametrize("kind", [b"2a", b"2b", b"2y"])
async def test_hashes_of_every_kind_count(kind: bytes) -> None:
    """htpasswd writes $2y$, Python $2b$, older tools $2a$."""
    hashed = b"$" + kind + USERS["prometheus"].removeprefix(b"$2b")
    check = PasswordCheck({"p": hashed}, LIMITS)
    assert await check.accepts(_basic(b"p:right:one"))
    check.close()
