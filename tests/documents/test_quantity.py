"""Kubernetes quantities: exact, never rounded."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.documents.mps import likely_quantity, read_quantity

FACTORS = {
    "": Fraction(1),
    **{s: Fraction(1024**n) for n, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
    **{s: Fraction(1000**n) for n, s in enumerate(("k", "M", "G", "T", "P"), 1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "e3": Fraction(1000),
    "E+2": Fraction(100),
    "e-1": Fraction(1, 10),
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8Gi", 8589934592),
        ("512Mi", 536870912),
        ("10G", 10_000_000_000),
        ("1.5Gi", 1610612736),
        (".5Ki", 512),
        ("1.", 1),
        ("+1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1000m", 1),
        ("0001", 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_values(text: str, value: int) -> None:
    """Known quantities have their known values."""
    assert read_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.1Gi", "whole number of bytes"),
        ("100m", "whole number of bytes"),
        ("1.0000000001Gi", "whole number of bytes"),
        ("0", "more than 0"),
        ("0Gi", "more than 0"),
        ("-1Gi", "negative"),
        ("8Ei", "more than 9223372036854775807"),
        ("1e99", "more than"),
        ("1e999", "expected"),
        ("", "expected"),
        (".", "expected"),
        ("Gi", "expected"),
        ("8GB", "expected"),
        ("8gi", "expected"),
        ("8 Gi", "expected"),
        ("8Gi\n", "expected"),
        ("1_000", "expected"),
        ("٣Gi", "expected"),
        ("1e3Gi", "expected"),
        ("9" * 1000, "expected"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    """What is no quantity, or no whole number of bytes, is refused with the reason."""
    with pytest.raises(ValueError, match=reason):
        read_quantity(text)


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(FACTORS)))
def test_exact(whole: int, thousandths: int, suffix: str) -> None:
    """The bytes are those of exact arithmetic, or the quantity is refused."""
    exact = (whole + Fraction(thousandths, 1000)) * FACTORS[suffix]
    text = f"{whole}.{thousandths:03}{suffix}"
    if exact.denominator == 1 and 0 < exact < 2**63:
        assert read_quantity(text) == exact
    else:
        with pytest.raises(ValueError, match=r"bytes|more than"):
            read_quantity(text)


@pytest.mark.parametrize(
    ("text", "likely"),
    [("8GB", "8G"), ("8 gi", "8Gi"), ("512mib", "512Mi"), ("8KB", "8k"), ("8", None), ("x", None)],
)
def test_likely(text: str, likely: str | None) -> None:
    """The usual misspellings lead to a quantity that can be read."""
    assert likely_quantity(text) == likely
    if likely:
        assert read_quantity(likely)
