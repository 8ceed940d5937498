import asyncio
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.pacing import Allowance, Backoff, RateLimit
from nodeagent.signals import Signal
from nodeagent.text import did_you_mean, nearest, nearest_names
from nodeagent.waiting import uncancelled

# --- signals --------------------------------------------------------------------------------------


def test_subscribers_are_called_in_order_until_they_leave() -> None:
    signal, called = Signal(0), list[tuple[str, int]]()
    leave = signal.subscribe(lambda value: called.append(("first", value)))
    signal.subscribe(lambda value: called.append(("second", value)))
    signal.publish(1)
    leave()
    signal.publish(2)
    assert called == [("first", 1), ("second", 1), ("second", 2)]
    assert signal.newest == 2


def test_one_that_fails_keeps_it_from_no_other() -> None:
    signal, called = Signal(0), list[int]()
    signal.subscribe(lambda value: 1 // (value - 1))
    signal.subscribe(called.append)
    with pytest.raises(ZeroDivisionError):
        signal.publish(1)
    assert called == [1]
    assert signal.newest == 1


async def test_iteration_gives_the_newest() -> None:
    signal, seen = Signal(0), list[int]()
    values = aiter(signal)
    seen.append(await anext(values))
    signal.publish(1)
    signal.publish(2)
    seen.append(await anext(values))
    waiting = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.publish(3)
    seen.append(await waiting)
    assert seen == [0, 2, 3]


async def test_a_value_later_than_a_version() -> None:
    signal = Signal(0)
    version = signal.version
    waiting = asyncio.ensure_future(signal.after(version))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.publish(0)
    assert await waiting == await signal.after(version) == 0


# --- waiting times --------------------------------------------------------------------------------


def test_the_ceiling_doubles_to_the_longest_and_starts_anew_after_a_reset() -> None:
    backoff = Backoff(0.5, 30.0, spread=1.0, jitter=lambda: 0.0)
    waits = [backoff.next() for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    backoff.reset()
    assert backoff.next() == 0.5


def test_what_the_server_asks_for_is_spread_too() -> None:
    backoff = Backoff(0.5, 30.0, spread=1.0, jitter=lambda: 0.5)
    assert backoff.next(7.0) == 7.25


@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=80),
    interval=st.sampled_from([0.5, 1.0, 3.0]),
    burst=st.integers(1, 4),
)
def test_turns_keep_to_the_rate_and_burst(gaps: list[float], interval: float, burst: int) -> None:
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
    assert Allowance(interval=1.0).next_at() < 0


class _Claim:
    """A key that is never seen again."""


def test_a_key_that_is_not_seen_again_is_not_kept() -> None:
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
    limit, repeated, later = RateLimit(10.0), _Claim(), _Claim()
    is_kept = [weakref.ref(repeated), weakref.ref(later)]
    assert (limit.due(repeated, 0.0), limit.due(repeated, 1.0), limit.due(later, 2.0)) == (1, 0, 1)
    del repeated, later
    assert limit.due("another", 101.0) == 1
    assert [key() for key in is_kept] == [None, None]


# --- work that may not be cut short ---------------------------------------------------------------


async def test_work_ends_however_often_its_caller_is_cancelled() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(uncancelled(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_what_comes_of_the_work_is_the_callers() -> None:
    assert await uncancelled(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await uncancelled(asyncio.to_thread(divmod, 1, 0))


# --- misspelt names -------------------------------------------------------------------------------


def test_the_nearest_names_are_in_their_order() -> None:
    known = ("all-1g.10gb", "all-1g.10gb.me", "all-1g.20gb", "all-2g.20gb", "mine")
    assert nearest_names("ALL-1g.10g", known)[0] == "all-1g.10gb"
    assert len(nearest_names("all-1g.10g", known)) == 3
    assert nearest_names("zzz", known) == ()


def test_a_remedy_names_the_nearest_as_it_is_written() -> None:
    assert nearest("MODEL", ("Model", "mine")) == "Model"
    assert did_you_mean("modle", ("model", "mine")) == "did you mean model?"
    assert did_you_mean("x" * 10_000, ("model",)) == ""
    assert nearest("modle", ("model",), cutoff=0.9) is None
