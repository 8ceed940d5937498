"""Kubernetes quantities (`8Gi`, `512Mi`, `10G`, `1.5Gi`) as exact numbers of bytes.

Grammar and meaning are those of apimachinery's resource.Quantity, except that nothing is ever
rounded: what is no whole number of bytes is refused.
"""

from __future__ import annotations

import re

LARGEST = 2**63 - 1  # bytes; what Kubernetes itself can hold

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]{0,24})(?:\.(?P<part>[0-9]{0,24}))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
_BINARY = {
    suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

ACCEPTED = "a Kubernetes quantity of bytes such as 8Gi, 512Mi or 10G"


def read_quantity(text: str) -> int:
    """The bytes a quantity means; raises ValueError with a sentence when it means none."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"expected {ACCEPTED}")
    if match["sign"] == "-":
        raise ValueError("memory cannot be negative")
    numerator, denominator = _ratio(match)
    if not numerator:
        raise ValueError("memory must be more than 0; without the key there is no limit")
    value, rest = divmod(numerator, denominator)
    if rest:
        below = f"; the next below is {value}" if value else ""
        raise ValueError(f"this is no whole number of bytes, and nothing is rounded{below}")
    if value > LARGEST:
        raise ValueError(f"this is more than {LARGEST} bytes")
    return value


def likely_quantity(text: str) -> str | None:
    """The quantity that was probably meant by a misspelt one: `8GB`, `8 gi`, `512mib`."""
    match = re.fullmatch(r"([0-9.]{1,20})\s*([a-z])(i?)b?", text.strip().lower())
    if match is None or match[2] not in "kmgtpe":
        return None
    number, unit, binary = match.groups()
    letter = unit if unit == "k" and not binary else unit.upper()
    return f"{number}{letter}{binary}"


def _ratio(match: re.Match[str]) -> tuple[int, int]:
    """The value as a fraction of integers."""
    part = match["part"] or ""
    numerator = int((match["whole"] + part) or "0")
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        return numerator * _BINARY[suffix], 10 ** len(part)
    exponent = int(match["exponent"]) if match["exponent"] else _DECIMAL[suffix]
    exponent -= len(part)
    return (numerator * 10**exponent, 1) if exponent >= 0 else (numerator, 10**-exponent)
