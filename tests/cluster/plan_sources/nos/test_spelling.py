"""nos' names of profiles and shares, and ours."""

from __future__ import annotations

from nodeagent.cluster.plan_sources.nos.grammar import (
    mig_profile,
    requested_names,
    share_size,
    spelled,
)
from tests.plan.cards import card


def test_mig_profile() -> None:
    """The device plugin's dot in the place of a plus is undone."""
    cases: list[tuple[str, str]] = [
        ("1g.5gb", "1g.5gb"),
        ("1g.10gb.me", "1g.10gb+me"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("2g.48gb.me.all", "2g.48gb+me.all"),
        ("1c.3g.40gb", "1c.3g.40gb"),
        ("7g.79gb", "7g.79gb"),
    ]
    for text, name in cases:
        assert str(mig_profile(text)) == name


def test_no_mig_profile() -> None:
    """nos' own test is not anchored and lets such names through; no card has them."""
    cases: list[str] = [
        "",
        "10gb",
        "x1g.5gb",
        "1g.5gbx",
        "0g.5gb",
        "1g.5gb.",
        "1g.5gb+",
        "9" * 5000 + "g.1gb",
    ]
    for text in cases:
        assert mig_profile(text) is None


def test_share_size() -> None:
    """A share is its gigabytes, at least one, and nothing else."""
    cases: list[tuple[str, int | None]] = [
        ("10gb", 10),
        ("1gb", 1),
        ("99999gb", 99999),
        ("0gb", None),
        ("010gb", None),
        ("10GB", None),
        ("1g.10gb", None),
        ("10gb\n", None),
        ("100000gb", None),
        ("gb", None),
        ("", None),
    ]
    for text, size in cases:
        assert share_size(text) == size


def test_spelled() -> None:
    """What a key can hold is spelled for it; what it cannot, is not."""
    cases: list[tuple[str, str | None]] = [
        ("3g.20gb", "3g.20gb"),
        ("1g.10gb+me", "1g.10gb.me"),
        ("1c.3g.40gb", "1c.3g.40gb"),
        ("2g.48gb-me", None),  # nos would split the key there
        ("1g.24gb+gfx,me", None),
    ]
    for device, text in cases:
        assert spelled(device) == text


def test_asked_words() -> None:
    """A card's profile is called as it was asked for, by its own name where that was used too."""
    gpu = card("a100-80gb")
    assert requested_names(gpu, ["7g.79gb", "1g.10gb"]) == {
        "7g.80gb": "7g.79gb",
        "1g.10gb": "1g.10gb",
    }
    assert requested_names(gpu, ["7g.79gb", "7g.80gb"]) == {"7g.80gb": "7g.80gb"}
    assert requested_names(gpu, ["7g.81gb", "7g.79gb"]) == {"7g.80gb": "7g.79gb"}
    assert requested_names(gpu, ["1g.10gb.me"]) == {"1g.10gb+me": "1g.10gb.me"}
    assert requested_names(gpu, ["1c.3g.39gb", "nonsense", "9g.10gb"]) == {
        "1c.3g.40gb": "1c.3g.39gb"
    }


def test_too_many_words() -> None:
    """No GPU has so many kinds of devices, and a hostile node must not cost time."""
    assert requested_names(card("a100-80gb"), [f"1g.{n}gb" for n in range(1, 20)]) == {}
