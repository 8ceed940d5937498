"""Guessers against the right user, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from nodeagent.api.passwords import Attempt, PasswordSchedule

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
            Attempt, tuple[int, float]
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

    def _give_up(self, attempt: Attempt, now: float) -> None:
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

    def _checked(self, attempt: Attempt, cost: float, now: float) -> None:
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
