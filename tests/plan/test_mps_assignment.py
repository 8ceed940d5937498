"""Who gets which daemon, against brute force, and what makes two wishes for one the same."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.search import START, STOP, Seat, assign, cost_of
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.plan.daemons import A, B, C, D

DAEMONS = st.sampled_from([None, A, B, C, D])


def wanted(mps: WantedMps | None, start: int | None = None) -> WantedInstance:
    return WantedInstance("1g.10gb", 1, start, "gpus[0].mig", mps)


def test_costs() -> None:
    cases = [
        (None, None, 0),
        (A, A, 0),
        (None, A, START),
        (A, B, START),
        (A, None, STOP),
        (A, C, STOP + START),
        (A, D, STOP + START),
        (C, A, START),
    ]
    for runs, to_be, cost in cases:
        assert cost_of(runs, to_be) == cost


@given(st.lists(st.tuples(DAEMONS, DAEMONS, st.booleans()), min_size=1, max_size=6))
def test_cheapest(seats: list[tuple[WantedMps | None, WantedMps | None, bool]]) -> None:
    runs = [runs for runs, _, _ in seats]
    asked = [wanted(mps, n if pinned else None) for n, (_, mps, pinned) in enumerate(seats)]
    there = [Seat("1g.10gb", 1, n, runs) for n, (runs, _, _) in enumerate(seats)]
    cost, given_out = assign(there, asked, lambda n, mps: cost_of(runs[n], mps))
    ways = [
        sum(cost_of(runs[n], w.mps) for n, w in enumerate(way))
        for way in permutations(asked)
        if all(w.start in (None, n) for n, w in enumerate(way))
    ]
    assert cost == min(ways)
    assert cost == sum(cost_of(r, m) for r, m in zip(runs, given_out, strict=True))
    assert all(given_out[w.start] == w.mps for w in asked if w.start is not None)
    assert sorted(map(repr, given_out)) == sorted(repr(w.mps) for w in asked)


def test_no_way() -> None:
    """An instance pinned where there is no device is a fault of the caller's."""
    with pytest.raises(ValueError, match="no way"):
        assign([Seat("1g.10gb", 1, n) for n in (0, 1)], [wanted(A, 7), wanted(None)], lambda *_: 0)


def small(*, threads: float = 25.0, path: str = "") -> WantedMps:
    """A daemon with one share, both written at `path`."""
    share = Share("small", 2, 1024, threads, path)
    return WantedMps(Sharing((share,), "report"), Account(1000, 1000), path)


def test_where_it_is_written_does_not_count() -> None:
    """A plan with other entries before it asks for the same daemon."""
    here, there = small(path="gpus[0].mps"), small(path="gpus[1].mps")
    assert here == there
    assert not here != there  # noqa: SIM202 - that operator, too
    assert len({here, there}) == 1


def test_limits_count() -> None:
    assert small(threads=25.0) != small(threads=50.0)
    assert len({small(threads=25.0), small(threads=50.0)}) == 2
