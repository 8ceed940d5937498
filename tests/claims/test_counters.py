"""Counters say exactly what the hardware and the planner allow, set by set."""

import pytest

from nodeagent.claims.offering.counters import CounterScheme, mismatch
from nodeagent.plan.observed import Engines, Gpu, GpuInstanceProfile, Placement
from nodeagent.structs import replace
from tests.claims import boards
from tests.plan.cards import card, with_instances


@pytest.mark.parametrize("board", boards.MIG_BOARDS)
def test_exact(board: str) -> None:
    """Feasible by counters, legal on the hardware and legal for the planner are the same sets, as
    many as are known of the board; the agent's own check agrees.
    """
    assert len(boards.legal_sets(board)) == boards.LEGAL_SETS[board]
    assert boards.feasible_sets(card(board)) == boards.legal_sets(board)
    assert mismatch(card(board)) == ""


def test_counters_by_board() -> None:
    for board in boards.MIG_BOARDS:
        slices = 8 if boards.LEGAL_SETS[board] == 2319 else 4
        engines = {"me": 1, "decoders": 4} if board.startswith("rtx") else {"me": 1}
        expected = {f"memory-slice-{n}": 1 for n in range(slices)} | engines
        assert CounterScheme.of(card(board)).totals == expected


@pytest.mark.parametrize("board", boards.KINDS)
def test_missing_figures(board: str) -> None:
    """A driver that does not report engines loses no legal set."""
    gpu = card(board)
    bare = replace(gpu, profiles=tuple(replace(p, engines=Engines()) for p in gpu.profiles))
    assert boards.legal_sets(board) <= boards.feasible_sets(bare)
    if boards.LEGAL_SETS[board] == 2319:
        assert boards.feasible_sets(bare) == boards.legal_sets(board)


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("board", boards.KINDS)
def test_exact_beside_fixed_devices(board: str, every: int) -> None:
    """Whatever is fixed, what is offered beside it can be there with it, and nothing is lost."""
    for fixed in sorted(boards.legal_sets(board), key=sorted)[::every]:
        assert mismatch(card(board), fixed) == ""


# --- where they differ ----------------------------------------------------------------------------


def test_says_what_differs() -> None:
    gpu = card("rtx-pro-6000")
    profiles = tuple(replace(p, max_count=1) if "+gfx" in p.name else p for p in gpu.profiles)
    found = mismatch(replace(gpu, profiles=profiles))
    pair = "mig-2g-48gb-gfx-0 + mig-2g-48gb-gfx-6"
    assert found == f"its counters allow {pair}, and the planner does not"


def test_fixed_devices_that_exclude_each_other() -> None:
    """They cannot be a layout, so nothing is concluded from them."""
    gpu = card("h100-80gb")
    overlapping: boards.DeviceSet = frozenset({"mig-3g-40gb-0", "mig-1g-10gb-2"})
    assert mismatch(gpu, overlapping) == "the planner does not allow mig-1g-10gb-2 + mig-3g-40gb-0"
    both = frozenset({"mig-1g-10gb-me-0", "mig-1g-10gb-me-2"})
    assert mismatch(gpu, both).startswith("the planner does not allow mig-1g-10gb-me-0")


def _profile(number: int, name: str, placements: list[Placement]) -> GpuInstanceProfile:
    return GpuInstanceProfile(number, number, name, 1, 1 << 30, 8, 64, tuple(placements))


def test_two_devices_of_one_name() -> None:
    """A card whose profiles have no distinct names is not offered in parts."""
    here = [Placement(0, 1)]
    profiles = (_profile(0, "1g.10gb+me.all", here), _profile(1, "1g.10gb+me,all", here))
    assert "the same name" in mismatch(Gpu(0, "GPU-x", profiles=profiles))


def test_too_many_sets() -> None:
    """A card of a later generation with very many placements does not hold up the agent."""
    profile = _profile(0, "1g.1gb", [Placement(n, 1) for n in range(24)])
    found = mismatch(Gpu(0, "GPU-x", profiles=(profile,)))
    assert found == "it can have more than 20000 different sets of devices"


def test_instances_of_unknown_kinds() -> None:
    """An instance of a profile that the driver does not list takes its slices."""
    gpu = with_instances(card("rtx-pro-6000"), [("2g.48gb", 6)])
    (known,) = gpu.instances
    scheme = CounterScheme.of(gpu)
    assert scheme.taken_by(known) == {"memory-slice-2": 1, "memory-slice-3": 1, "decoders": 2}
    odd = replace(known, profile="2g.48gb+new", placement=Placement(5, 2))
    assert scheme.taken_by(odd) == {"memory-slice-1": 1, "memory-slice-2": 1}
    assert CounterScheme.of(replace(gpu, profiles=())).taken_by(odd)
