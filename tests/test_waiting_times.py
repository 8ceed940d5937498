"""Waiting times between retries, and the turns of a rate limit."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.pacing import Allowance, Backoff, RateLimit


def test_the_ceiling_doubles_to_the_longest_and_starts_anew_after_a_reset() -> None:
    """At the top of the jitter the waits are the ceilings themselves."""
    backoff = Backoff(0.5, 30.0, spread=1.0, jitter=lambda: 0.0)
    waits = [backoff.next() for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    backoff.reset()
    assert backoff.next() == 0.5


def test_what_the_server_asks_for_is_spread_too() -> None:
    """Retry-After is a least wait; jitter comes on top of it."""
    backoff = Backoff(0.5, 30.0, spread=1.0, jitter=lambda: 0.5)
    assert backoff.next(7.0) == 7.25


@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=80),
    interval=st.sampled_from([0.5, 1.0, 3.0]),
    burst=st.integers(1, 4),
)
def test_turns_are_never_more_than_the_rate_and_the_burst(
    gaps: list[float], interval: float, burst: int
) -> None:
    """Over any stretch of time there are at most its length over the interval, and the burst."""
    allowance = Allowance(interval=interval, burst=burst)
    now, turns = 1000.0, []
    for gap in gaps:
        now = max(now + gap, allowance.next_at())
        allowance.take(now)
        turns.append(now)
    for i, begin in enumerate(turns):
        for j in range(i, len(turns)):
            assert j - i + 1 <= (turns[j] - begin) / interval + burst + 1e-9


def test_the_first_turn_waits_for_nothing() -> None:
    """What has been quiet may speak at once."""
    assert Allowance(interval=1.0).next_at() < 0


class _Claim:
    """A key that is never seen again."""


def test_a_key_that_is_not_seen_again_is_not_kept() -> None:
    """Unless it holds something back, which the next line about it has to say."""
    limit, gone, repeated = RateLimit(10.0), _Claim(), _Claim()
    is_kept, says = weakref.ref(gone), weakref.ref(repeated)
    assert limit.due(gone, 0.0) == limit.due(repeated, 0.0) == 1
    assert limit.due(repeated, 1.0) == 0
    del gone, repeated

    assert limit.due("another", 9.0) == 1
    assert is_kept() is not None
    assert limit.due("another", 19.5) == 1
    assert is_kept() is None
    kept = says()
    assert kept is not None
    assert limit.due(kept, 20.0) == 2


def test_a_key_that_was_repeated_is_not_kept_for_ever() -> None:
    """Nor are those that came after it, which hold nothing back."""
    limit, repeated, later = RateLimit(10.0), _Claim(), _Claim()
    is_kept = [weakref.ref(repeated), weakref.ref(later)]
    assert (limit.due(repeated, 0.0), limit.due(repeated, 1.0), limit.due(later, 2.0)) == (1, 0, 1)
    del repeated, later
    assert limit.due("another", 101.0) == 1
    assert [key() for key in is_kept] == [None, None]
