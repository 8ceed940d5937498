"""What option values may be; each function raises ArgumentTypeError with a sentence."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def index(text: str) -> int:
    """The index of a GPU, from 0."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not the index of a GPU")
    return int(text)


def seconds(text: str) -> float:
    """Seconds, possibly with a fraction; none at all is allowed."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def share(text: str) -> float:
    """A share of a whole, from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def figure(text: str) -> int | float:
    """What a sensor reports: whole where it is written so, since most of NVML's figures are."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "K": 10**3, "M": 10**6, "G": 10**9}


def size(text: str) -> int:
    """Bytes, written as a Kubernetes quantity such as `512Mi` or `2G`."""
    number = text.rstrip("KMGi")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512Mi or 2Gi")
    return int(number) * _UNITS[unit]
