"""Heartbeats and what wakes the loop."""

from __future__ import annotations

import pytest

from nodeagent.reconcile.loop_control import Abandoned, Heartbeats, LoopControl


async def test_only_a_stop_abandons_a_look() -> None:
    """Any other timeout is an error of its own."""
    control = LoopControl()
    with pytest.raises(TimeoutError):
        async with control.abandoned_at_stop():
            raise TimeoutError
    control.stop()
    with pytest.raises(Abandoned):
        async with control.abandoned_at_stop():
            raise TimeoutError


def test_a_loop_is_overdue_only_after_its_own_time() -> None:
    """A loop that said it would be busy has until then; the sentence names it."""
    now = 0.0
    heartbeats = Heartbeats(lambda: now)
    heartbeats.beat("reconciler", within=60)
    heartbeats.beat("plan file", within=5)
    assert heartbeats.overdue() == ()
    now = 7.0
    assert [sentence.split(" has")[0] for sentence in heartbeats.overdue()] == ["the plan file"]
    heartbeats.beat("plan file", within=5)
    assert heartbeats.overdue() == ()
