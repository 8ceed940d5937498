"""Profile names: reading, writing, and which of a card's profiles one means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.plan.names import ProfileName, find, nearest_profile
from tests.plan.cards import card


def test_reads_and_writes() -> None:
    cases = [
        "3g.40gb",
        "1g.10gb+me",
        "1c.3g.40gb",
        "1c.2g.12gb+me",
        "2g.48gb-me",
        "1g.24gb+me.all",
        "4g.96gb+gfx",
        "1g.24gb+gfx,me",
    ]
    for text in cases:
        assert text == str(ProfileName.parse(text))


def test_canonical() -> None:
    cases = [
        ("7c.7g.40gb", "7g.40gb"),
        ("01g.05gb", "1g.5gb"),
        ("1g.24gb+me,gfx", "1g.24gb+gfx,me"),
    ]
    for text, canonical in cases:
        assert canonical == str(ProfileName.parse(text))


def test_refuses() -> None:
    cases = [
        *("", "3g", "3g.40GB", "3g40gb", " 3g.40gb", "3g.40gb\n", "0g.0gb", "4c.3g.40gb"),
        *("1g.5gb.me", "1g.24gb+", "1g.24gb+1me", "1g.24gb+me.", "1g.24gb+me,me", "1g.24gb+me-gfx"),
        *("-1g.5gb", "1g.10gb+me\x00", "\u0661g.10gb"),
    ]
    for text in cases:
        with pytest.raises(
            ValueError, match=r"is not a profile|size of 0|compute slices|attribute"
        ):
            ProfileName.parse(text)


@given(st.text(max_size=30))
def test_never_fails_otherwise(text: str) -> None:
    try:
        name = ProfileName.parse(text)
    except ValueError:
        return
    assert name == ProfileName.parse(str(name))


def test_drifting_spellings() -> None:
    """Spellings of other drivers lead to the one profile they can mean."""
    cases = [
        ("a100-80gb", "3g.39gb", "3g.40gb"),
        ("a100-80gb", "7g.79gb", "7g.80gb"),
        ("gb200", "7g.189gb", "7g.186gb"),
        ("gb200", "1g.24gb", "1g.23gb"),
        ("h100-80gb", "1c.3g.40gb", "3g.40gb"),
        ("h100-80gb", "1g.20gb", "1g.20gb"),
    ]
    for board, text, means in cases:
        (found,) = find(ProfileName.parse(text), card(board).profiles)
        assert means == found.name


def test_another_cards_profile() -> None:
    """A profile of another card is not taken for a spelling of this card's."""
    cases = [
        ("a100-40gb", "1g.6gb"),
        ("a100-40gb", "2g.20gb"),
        ("h100-80gb", "1g.12gb"),
        ("a100-40gb", "1g.5gb+gfx"),
        ("a30", "3g.20gb"),
    ]
    for board, text in cases:
        assert find(ProfileName.parse(text), card(board).profiles) == ()


def test_nearest() -> None:
    names = [p.name for p in card("h100-80gb").profiles]
    assert nearest_profile("3g.4gb", names) == "3g.40gb"
    assert nearest_profile("1g.10gb.me", names) == "1g.10gb+me"
    assert None is nearest_profile("potato", names)


def test_nearest_by_meaning() -> None:
    """A profile of another board leads to the one that stands for it here."""
    cases = [
        ("h100-80gb", "1g.5gb", "1g.10gb"),  # as on an A100 40GB
        ("h100-80gb", "1g.5gb+me", "1g.10gb+me"),
        ("h100-80gb", "1g.20gb+me", "1g.10gb+me"),  # there are media engines with that one alone
        *(("h100-80gb", "1g.10gb+gfx", "1g.10gb"), ("h100-80gb", "2g.10gb", "2g.20gb")),
        *(("h100-80gb", "3g.20gb", "3g.40gb"), ("h100-80gb", "1c.3g.20gb", "1c.3g.40gb")),
        ("h100-80gb", "7g.40gb", "7g.80gb"),
        ("h100-80gb", "8g.40gb", "4g.40gb"),  # as much memory, and most slices
        *(("h100-80gb", "1g.5gb.me", "1g.10gb+me"), ("a100-40gb", "1g.12gb", "1g.10gb")),
        *(("a100-40gb", "7g.80gb", "7g.40gb"), ("a30", "1g.5gb", "1g.6gb")),
        *(("a30", "1g.10gb+me", "1g.6gb+me"), ("a30", "3g.20gb", "4g.24gb")),
        *(("h200", "1g.10gb", "1g.18gb"), ("h200", "1g.40gb", "1g.35gb")),
        *(("b200", "1g.10gb+me", "1g.23gb+me"), ("b200", "3g.71gb", "3g.90gb")),
    ]
    for board, text, meant in cases:
        assert nearest_profile(text, [p.name for p in card(board).profiles]) == meant, text
