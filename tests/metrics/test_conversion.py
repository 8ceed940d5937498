"""Each conversion, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from nodeagent.metrics.sources import Conversion, Raw, converted

CASES: list[tuple[Conversion, Raw, float | None]] = [
    (Conversion.AS_IS, 1980, 1980),
    (Conversion.THOUSANDTH, 68_123, 68.123),
    (Conversion.WHOLE_MEBIBYTES, 85_520_809_984, 81_559),
    (Conversion.WHOLE_MEBIBYTES, 1_048_575, 0),
    (Conversion.PERCENT_AS_RATIO, 37.5, 0.375),
    (Conversion.MEBIBYTES_AS_BYTES, 1.5, 1_572_864),
    (Conversion.MEMORY_TEMPERATURE, 95, 95),
    (Conversion.MEMORY_TEMPERATURE, 200, 200),
    (Conversion.MEMORY_TEMPERATURE, 255, None),
    (Conversion.BIT_ERROR_RATIO, (5 << 8) | 12, 5e-12),
    (Conversion.BIT_ERROR_RATIO, 0, 0.0),
    (Conversion.VERSION_PAIR, (9, 0), 589_824),
    (Conversion.USED_SHARE, (20, 100, 20), 0.25),
    (Conversion.USED_SHARE, (0, 20, 20), None),
    (Conversion.HOW_MANY, (0xDEAD, 0xBEEF), 2),
    (Conversion.HOW_MANY, (), 0),
    (Conversion.ANY_POSITIVE, (0, 0, 1), 1),
    (Conversion.ANY_POSITIVE, (0, 0), 0),
    (Conversion.AS_IS, math.nan, None),
]


@pytest.mark.parametrize(("conversion", "raw", "value"), CASES)
def test_a_value(conversion: Conversion, raw: Raw, value: float | None) -> None:
    """The exported value is the one worked out, or there is none."""
    result = converted(conversion, raw)
    assert result is None if value is None else result == pytest.approx(value, rel=1e-12)


def test_each_conversion_has_a_case() -> None:
    """None is left out above."""
    assert {conversion for conversion, _, _ in CASES} == set(Conversion)


def test_several_numbers_are_not_taken_for_one() -> None:
    """A row that names too many items is a fault, not a value."""
    with pytest.raises(TypeError, match="takes one number, not 2"):
        converted(Conversion.THOUSANDTH, (1, 2))
