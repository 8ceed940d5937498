from math import inf

import pytest

from bench.soak import counts, slopes


@pytest.mark.full
@pytest.mark.timeout(300)  # a whole agent for some thousand rounds, on a machine that may be busy
def test_a_round_leaves_nothing_behind() -> None:
    """Samples, scrapes, reconciliations, daemons, health, tenants: none leaves objects behind.

    How long the agent takes to be warm depends on the machine, so it runs until its growth is
    surely below one object in a round. One that leaks never comes there.
    """
    found, surely = [], inf
    for one in counts(3000, every=0.2, changing=False):
        found.append(one)
        if one["rounds"] >= 240 and len(found) >= 20:
            grown = slopes(found)["objects"]
            surely = grown.value + 2 * grown.error
        if surely < 1:
            break
    assert surely < 1


@pytest.mark.full
@pytest.mark.timeout(900)
def test_thousands_of_rounds_leave_nothing_behind() -> None:
    grown = slopes(list(counts(6000)))
    assert grown["objects"].value - 2 * grown["objects"].error < 0.1
    assert grown["blocks"].value - 2 * grown["blocks"].error < 1
