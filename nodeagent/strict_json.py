"""JSON from outside, refused with a ValueError wherever Python's own reader lets it do harm.

`json.loads` takes `NaN`, makes infinity of `7e18422`, numbers without bounds that no float holds,
and raises RecursionError for a long row of brackets.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_MAX_INTEGER = 2**64  # NVML counts with 64 bits


def parse_json(text: str | bytes) -> Any:
    """The value; every float in it is finite, every integer has at most 64 bits.

    Raises ValueError alone, for text that is no JSON, too deep or holds other numbers.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded_integer
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {_shortened(digits)} is too large")
    return value


def _bounded_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 21 else _MAX_INTEGER
    if abs(value) >= _MAX_INTEGER:
        raise ValueError(f"the number {_shortened(digits)} is too large")
    return value


def _shortened(digits: str) -> str:
    return digits if len(digits) <= 24 else f"{digits[:20]}..."
