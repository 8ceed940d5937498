"""Boxes over memory slices."""

from __future__ import annotations

from nodeagent.terminal.page import plain_text
from nodeagent.terminal.slices import Cell, bar, fold


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
