"""How a command and its options are declared, for the tables of commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodeagent.cli.values import seconds


class Option(NamedTuple):
    """An option or argument: its spellings, and what argparse takes beside them."""

    names: tuple[str, ...]
    details: Mapping[str, Any]


class Command(NamedTuple):
    """A command: what it does in a line, and what it takes beside the options of every command.

    Of `one_of` exactly one has to be given. `subcommands` are made when they are needed.
    """

    summary: str
    options: tuple[Option, ...] = ()
    one_of: tuple[Option, ...] = ()
    subcommands: Callable[[], Mapping[str, Command]] = dict


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
