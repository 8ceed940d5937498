"""What another arrangement of the same instances would leave room for."""

from collections import Counter

import pytest

from nodeagent.claims.names import places
from nodeagent.plan.layouts import creatable, fragmentation
from nodeagent.plan.observed import HealthLimits
from nodeagent.structs import replace
from tests.claims.boards import legal_sets, mig_off, with_devices
from tests.plan.cards import card, with_instances

H100 = card("h100-80gb")


@pytest.mark.parametrize("board", ["a30", "h100-80gb"])
def test_it_compares_with_the_best_that_is_legal(board: str) -> None:
    """For each legal set of devices, by the simulator's rules: so many more of a profile would fit
    as there are more of it in any legal set that has the same profiles beside.
    """
    gpu = card(board)
    known = places(gpu)
    sets = sorted(legal_sets(board), key=sorted)
    legal = {_counts(known[name].profile.name for name in devices) for devices in sets}
    for devices in sets[:: 1 if board == "a30" else 7]:
        there = Counter(known[name].profile.name for name in devices)
        best = 0
        for profile in gpu.profiles:
            more = 0
            while _counts((there + Counter({profile.name: more + 1})).elements()) in legal:
                more += 1
            best += more
        laid = with_devices(gpu, devices)
        now = sum(creatable(laid).values())
        assert fragmentation(laid) == (1 - now / best if best else 0.0), devices


def _counts(names: object) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(names).items())  # type: ignore[call-overload]  # of any iterable


def test_nothing_is_lost_on_an_empty_or_a_full_card() -> None:
    """Moving what is not there, or cannot be anywhere else, helps nothing."""
    assert fragmentation(H100) == 0.0
    full = with_instances(H100, [("7g.80gb", 0)])
    for profiles in (full.profiles, [p for p in full.profiles if p.name == "7g.80gb"]):
        assert fragmentation(replace(full, profiles=tuple(profiles))) == 0.0
    assert fragmentation(with_instances(H100, [("1g.10gb", n) for n in range(7)])) == 0.0


def test_a_small_instance_in_the_wrong_place() -> None:
    """1g.10gb in the middle of both halves, so that no 3g.40gb fits any more."""
    lost = fragmentation(with_instances(H100, [("1g.10gb", 2), ("1g.10gb", 5)]))
    assert lost is not None
    assert 0 < lost < 1


def test_what_lies_on_unhealthy_slices_cannot_be_moved() -> None:
    """So that it does not count what only moving that would mend."""
    laid = with_instances(H100, [("1g.10gb", 2)])
    sick = replace(laid, health_limits=HealthLimits(slices=1 << 2))
    assert fragmentation(sick) == 0.0
    assert fragmentation(replace(laid, health_limits=HealthLimits(slices=1 << 6))) != 0.0


def test_where_it_is_not_known() -> None:
    """Outside MIG mode, on a card that takes nothing new, beside a profile that is not listed."""
    assert fragmentation(mig_off(H100)) is None
    assert fragmentation(replace(H100, health_limits=HealthLimits(whole=True))) is None
    laid = with_instances(H100, [("1g.10gb", 2)])
    (odd,) = (replace(i, profile="9g.90gb") for i in laid.instances)
    assert fragmentation(replace(laid, instances=(odd,))) is None
