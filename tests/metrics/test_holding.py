"""Seconds of GPUs and slices, held and used, for each pod."""

from __future__ import annotations

import pytest

from nodeagent.metrics.agent_samples import HeldTime, Hold, Holder

A, B = Holder("team-a", "train-0"), Holder("team-b", "serve-1")


def test_time_counts_for_who_held_it_when_it_began() -> None:
    """A whole GPU for 10 s is 10 GPU-seconds; what the activity says of them is used."""
    time = HeldTime()
    time.observe(100.0, [Hold("GPU-0", A, gpus=1, active=None)])
    time.observe(110.0, [Hold("GPU-0", A, gpus=1, active=0.25)])
    held = time.held[A]
    assert (held.gpu_seconds, held.gpu_seconds_used) == (10.0, 2.5)
    assert (held.slice_seconds, held.slice_seconds_used) == (0.0, 0.0)


def test_slices_and_shares_are_parts() -> None:
    """Half of an instance of 4 of 8 slices is 2 slices and a quarter of a GPU."""
    time = HeldTime()
    holds = [Hold("MIG-1", who, gpus=0.25, slices=2, active=1.0) for who in (A, B)]
    time.observe(0.0, holds)
    time.observe(4.0, holds)
    for who in (A, B):
        held = time.held[who]
        assert (held.gpu_seconds, held.slice_seconds, held.slice_seconds_used) == (1.0, 8.0, 8.0)


def test_a_hold_that_ended_has_its_last_interval() -> None:
    """Who lets go had it until then; who comes begins then."""
    time = HeldTime()
    time.observe(0.0, [Hold("GPU-0", A, gpus=1)])
    time.observe(5.0, [Hold("GPU-0", B, gpus=1)])
    time.observe(7.0, [Hold("GPU-0", B, gpus=1)])
    assert (time.held[A].gpu_seconds, time.held[B].gpu_seconds) == (5.0, 2.0)
    assert time.held[A].gpu_seconds_used == 0.0


@pytest.mark.parametrize("later", [100.0, 90.0, 161.0])
def test_time_that_stands_jumps_or_is_unknown_does_not_count(later: float) -> None:
    """A clock that goes back and a gap that is too long add nothing, and take nothing away."""
    time = HeldTime(longest_gap=60.0)
    time.observe(100.0, [Hold("GPU-0", A, gpus=1)])
    time.observe(later, [Hold("GPU-0", A, gpus=1)])
    assert time.held[A].gpu_seconds == 0.0
    time.observe(later + 1, [Hold("GPU-0", A, gpus=1)])
    assert time.held[A].gpu_seconds == 1.0


def test_activity_is_never_more_than_all_the_time() -> None:
    """Whatever a counter says, used is at most held."""
    time = HeldTime()
    for now in (0.0, 1.0):
        time.observe(now, [Hold("GPU-0", A, gpus=1, active=1.7)])
    assert time.held[A].gpu_seconds_used == 1.0


def test_who_let_go_is_forgotten_after_a_while() -> None:
    """The last values can still be scraped; after that nothing is kept."""
    time = HeldTime(keep=30.0)
    time.observe(0.0, [Hold("GPU-0", A, gpus=1)])
    time.observe(10.0, [])
    time.observe(30.0, [])
    assert time.held[A].gpu_seconds == 10.0
    time.observe(31.0, [])
    assert time.held == {}
