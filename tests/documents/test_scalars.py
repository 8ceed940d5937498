"""What unquoted words mean."""

from __future__ import annotations

import pytest

from nodeagent.documents.bounded_yaml import plain_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3g.40gb", "3g.40gb"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("yes", True),
        ("On", True),
        ("y", True),
        ("OFF", False),
        ("n", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("0000:10:00.0", "0000:10:00.0"),
        ("12:30", "12:30"),
        ("1000:1000", "1000:1000"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("v1", "v1"),
        ("nope", "nope"),
        ("Infinite", "Infinite"),
        ("-", "-"),
    ],
)
def test_meaning(text: str, value: object) -> None:
    """Words mean what mig-parted takes them for, and addresses and dates stay text."""
    assert (plain_scalar(text), type(plain_scalar(text))) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (".nan", "finite"),
        ("-.inf", "finite"),
        ("NaN", "finite"),
        ("Infinity", "finite"),
        ("010", "leading zero"),
        ("9" * 30, "too large"),
        ("1" + "0" * 5000, "too large"),
        ("0x" + "f" * 30, "too large"),
        ("1e999", "too large"),
    ],
)
def test_no_meaning(text: str, reason: str) -> None:
    """Numbers that are none, ambiguous or huge are refused with the reason."""
    with pytest.raises(ValueError, match=reason):
        plain_scalar(text)
