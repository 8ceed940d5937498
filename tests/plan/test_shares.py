"""What makes two wishes for MPS the same."""

from __future__ import annotations

from nodeagent.plan.shares import Account, Share, Sharing, WantedMps


def wanted(*, threads: float = 25.0, path: str = "") -> WantedMps:
    """A daemon with one share, both written at `path`."""
    share = Share("small", 2, 1024, threads, path)
    return WantedMps(Sharing((share,), "report"), Account(1000, 1000), path)


def test_where_it_is_written_does_not_count() -> None:
    """A plan with other entries before it asks for the same daemon."""
    here, there = wanted(path="gpus[0].mps"), wanted(path="gpus[1].mps")
    assert here == there
    assert not here != there  # noqa: SIM202 - that operator, too
    assert len({here, there}) == 1


def test_limits_count() -> None:
    """Other limits are another daemon."""
    assert wanted(threads=25.0) != wanted(threads=50.0)
    assert len({wanted(threads=25.0), wanted(threads=50.0)}) == 2
