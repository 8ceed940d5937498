"""Boxes over memory slices."""

from __future__ import annotations

from nodeagent.terminal.page import plain_text
from nodeagent.terminal.slices import Cell, bar, fold, ruler


def test_boxes_are_as_wide_as_their_slices() -> None:
    """A box of four slices is four times as wide as one of one, borders shared."""
    drawn = plain_text(bar([Cell(0, 1, ("a",)), Cell(1, 3, ("b",))], 4, 41))
    assert drawn.splitlines() == [
        "┌─────────┬─────────────────────────────┐",
        "│a        │b                            │",
        "└─────────┴─────────────────────────────┘",
    ]


def test_gaps_are_drawn_as_empty_boxes() -> None:
    """Slices that no instance occupies are drawn, before, between and behind the instances."""
    drawn = plain_text(bar([Cell(3, 1, ("b",)), Cell(1, 1, ("a",))], 5, 21)).splitlines()
    assert drawn[1] == "│   │a  │   │b  │   │"


def test_boxes_stand_under_the_number_of_their_slice() -> None:
    """The ruler's numbers are where the boxes begin."""
    numbers = plain_text([ruler(8, 65)]).rstrip()
    edge = plain_text(bar([Cell(4, 4, ("x",))], 8, 65)).splitlines()[1]
    assert edge.index("│x") == numbers.index("4")


def test_twelve_slices_fit_eighty_columns() -> None:
    """A card with more slices gets narrower ones, not a wider picture."""
    drawn = plain_text(bar([Cell(n, 3, ("1g.24gb",)) for n in (0, 3, 6, 9)], 12, 72))
    assert [len(row) for row in drawn.splitlines()] == [61] * 3


def test_long_names_go_on_in_the_next_row() -> None:
    """An attribute moves below the profile when both do not fit side by side."""
    assert fold("1g.10gb+me", 7) == ("1g.10gb", "+me")
    assert fold("1g.10gb+me", 10) == ("1g.10gb+me",)
    assert fold("3 x 1c.3g.40gb", 10) == ("3 x", "1c.3g.40gb")


def test_what_does_not_fit_at_all_is_visibly_cut() -> None:
    """A name that is cut ends in an ellipsis, so that it is not taken for another."""
    assert fold("1c.3g.40gb", 6) == ("1c.3g…",)


def test_all_rows_of_a_bar_have_the_same_width() -> None:
    """Labels of different lengths do not bend the picture."""
    drawn = plain_text(bar([Cell(0, 1, ("1g.10gb+me.all", "x")), Cell(1, 1, ())], 2, 30))
    assert len({len(row) for row in drawn.splitlines()}) == 1
