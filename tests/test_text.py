"""What is said to people of a misspelt name."""

from __future__ import annotations

from nodeagent.text import did_you_mean, nearest, nearest_names


def test_the_nearest_names_are_in_their_order() -> None:
    """The most alike first, at most three, capitals aside."""
    known = ("all-1g.10gb", "all-1g.10gb.me", "all-1g.20gb", "all-2g.20gb", "mine")
    assert nearest_names("ALL-1g.10g", known)[0] == "all-1g.10gb"
    assert len(nearest_names("all-1g.10g", known)) == 3
    assert nearest_names("zzz", known) == ()


def test_a_remedy_names_the_nearest_as_it_is_written() -> None:
    """In its own capitals, or not at all."""
    assert nearest("MODEL", ("Model", "mine")) == "Model"
    assert did_you_mean("modle", ("model", "mine")) == "did you mean model?"
    assert did_you_mean("x" * 10_000, ("model",)) == ""
    assert nearest("modle", ("model",), cutoff=0.9) is None
