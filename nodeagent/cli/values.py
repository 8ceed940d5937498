"""What option values may be; each function raises ArgumentTypeError with a sentence."""

from __future__ import annotations

import argparse
import math

_LONGEST_TIME = 1e9  # seconds; beyond ten times that, no socket takes it as a time limit
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "K": 10**3, "M": 10**6, "G": 10**9}


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1, "a whole number of at least 1")


def index(text: str) -> int:
    """The index of a GPU, from 0."""
    return _whole(text, 0, "the index of a GPU")


def seconds(text: str) -> float:
    """Seconds, possibly with a fraction; none at all is allowed."""
    return _number(text, 0, _LONGEST_TIME, "a number of seconds")


def share(text: str) -> float:
    """A share of a whole, from 0 to 1."""
    return _number(text, 0, 1, "a share from 0 to 1")


def figure(text: str) -> int | float:
    """What a sensor reports: whole where it is written so, since most of NVML's figures are."""
    try:
        return int(text)
    except ValueError:
        return _number(text, -math.inf, math.inf, "a number")


def size(text: str) -> int:
    """Bytes, written as a Kubernetes quantity such as `512Mi` or `2G`."""
    number = text.rstrip("KMGi")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise _refusal(text, "a size such as 512Mi or 2Gi")
    return int(number) * _UNITS[unit]


def _whole(text: str, least: int, kind: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise _refusal(text, kind)
    return int(text)


def _number(text: str, least: float, most: float, kind: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        raise _refusal(text, kind)
    return value


def _refusal(text: str, kind: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not {kind}")
