"""Limits of tests count what the machine could do."""

from __future__ import annotations

import os

import pytest

from tests.machine_load import stretched


@pytest.mark.parametrize(
    ("load", "limit"), [((0.5, 0.5, 90), 240), ((80, 20, 1), 9600), ((1, 8, 90), 960)]
)
def test_a_limit_is_as_many_times_longer_as_processors_are_shared(
    monkeypatch: pytest.MonkeyPatch, load: tuple[float, float, float], limit: float
) -> None:
    """By the busier one of the last minute and the last five."""
    monkeypatch.setattr(os, "getloadavg", lambda: load)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert stretched(240) == limit
