"""Heartbeats and what wakes the loop."""

from __future__ import annotations

from nodeagent.reconcile.loop_control import Heartbeats


def test_a_loop_is_overdue_only_after_its_own_time() -> None:
    """A loop that said it would be busy has until then; the sentence names it."""
    now = 0.0
    hearts = Heartbeats(lambda: now)
    hearts.beat("reconciler", within=60)
    hearts.beat("plan file", within=5)
    assert hearts.overdue() == ()
    now = 7.0
    assert [sentence.split(" has")[0] for sentence in hearts.overdue()] == ["the plan file"]
    hearts.beat("plan file", within=5)
    assert hearts.overdue() == ()
