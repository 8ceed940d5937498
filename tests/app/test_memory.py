"""The agent's memory does not grow with its rounds."""

from __future__ import annotations

import pytest

from bench.soak import counts, slopes


@pytest.mark.timeout(120)  # a whole agent for some hundred rounds, on a machine that may be busy
def test_a_round_leaves_nothing_behind() -> None:
    """Samples, scrapes, reconciliations, daemons, health, tenants: none leaves objects behind."""
    grown = slopes(list(counts(240, every=0.2, changing=False)))["objects"]
    assert grown.value - 2 * grown.error < 1


@pytest.mark.full
@pytest.mark.timeout(900)
def test_thousands_of_rounds_leave_nothing_behind() -> None:
    """The same while the layout changes all the time; the rings of events and handles are full."""
    grown = slopes(list(counts(6000)))
    assert grown["objects"].value - 2 * grown["objects"].error < 0.1
    assert grown["blocks"].value - 2 * grown["blocks"].error < 1
