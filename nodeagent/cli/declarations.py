"""How commands and their options are declared, and what the values of options may be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_MAX_SECONDS = 1e9  # seconds; beyond ten times that, no socket takes it as a time limit
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "K": 10**3, "M": 10**6, "G": 10**9}


class Option(NamedTuple):
    """An option or argument: its spellings, and what argparse takes beside them."""

    names: tuple[str, ...]
    details: Mapping[str, Any]


def option(*names: str, **details: Any) -> Option:
    """One with what argparse takes."""
    return Option(names, details)


def path(name: str, meaning: str, *, metavar: str = "FILE") -> Option:
    """One that takes a file or folder."""
    return option(name, metavar=metavar, type=Path, help=meaning)


def choice(name: str, words: Sequence[str], meaning: str, **details: Any) -> Option:
    """One that takes one of the words."""
    return option(name, choices=words, help=meaning, **details)


def flag(name: str, meaning: str) -> Option:
    """One that takes nothing."""
    return option(name, action="store_true", help=meaning)


def duration(
    name: str, meaning: str, *, default: float | None = None, metavar: str = "SECONDS"
) -> Option:
    """One that takes seconds."""
    return option(name, metavar=metavar, type=seconds, default=default, help=meaning)


HELP = option("-h", "--help", action="help", help="show this help message and exit")


class Command(NamedTuple):
    """A command: what it does in a line, and what it takes beside the options of every command.

    Of `one_of` exactly one has to be given. `subcommands` are made when they are needed. `general`
    stand before the options of every command.
    """

    summary: str
    options: tuple[Option, ...] = ()
    one_of: tuple[Option, ...] = ()
    subcommands: Callable[[], Mapping[str, Command]] = dict
    general: tuple[Option, ...] = (HELP,)

    @property
    def sentence(self) -> str:
        """The summary as a sentence."""
        end = "" if self.summary.endswith("?") else "."
        return self.summary[0].upper() + self.summary[1:] + end


# --- values: each function raises ArgumentTypeError with a sentence -------------------------------


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1, "a whole number of at least 1")


def index(text: str) -> int:
    """The index of a GPU, from 0."""
    return _whole(text, 0, "the index of a GPU")


def seconds(text: str) -> float:
    """Seconds, possibly with a fraction; none at all is allowed."""
    return _number(text, 0, _MAX_SECONDS, "a number of seconds")


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
