"""Records of comma-separated values as Go's encoding/csv reads them, which dcgm-exporter uses.

A line that begins with # is a comment, an empty one nothing. A field that begins with a quotation
mark goes to the next single one, over commas and line ends; two of them stand for one. Anywhere
else a quotation mark is a fault. Blanks belong to the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a record that begins on `line` (from 1); `fault` says why it is none."""

    line: int
    fields: tuple[str, ...] = ()
    fault: str = ""


def records(text: str) -> Iterator[Record]:
    """The records of a text. One with a fault ends with its line; the next begins after it."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line or line.startswith("#"):
            at += 1
            continue
        record, at = _record(lines, at)
        yield record


def _record(lines: list[str], first: int) -> tuple[Record, int]:
    """The record that begins on a line, and the line after it."""
    fields: list[str] = []
    at, rest = first, lines[first]
    while True:
        if rest.startswith('"'):
            quoted = _quoted(lines, at, rest)
            if isinstance(quoted, str):
                return Record(first + 1, fault=quoted), first + 1
            field, at, rest = quoted
        else:
            field, comma, rest = rest.partition(",")
            if '"' in field:
                fault = "a quotation mark inside a field that does not begin with one"
                return Record(first + 1, fault=fault), first + 1
            rest = comma + rest
        fields.append(field)
        if not rest:
            return Record(first + 1, tuple(fields)), at + 1
        rest = rest[1:]


def _quoted(lines: list[str], at: int, rest: str) -> tuple[str, int, str] | str:
    """A quoted field, the line it ends on and what follows there; or what is wrong with it."""
    value = ""
    rest = rest[1:]
    while True:
        part, mark, rest = rest.partition('"')
        value += part
        if not mark:
            at += 1
            if at == len(lines):
                return "a quotation mark that is never closed"
            value += "\n"
            rest = lines[at]
        elif rest.startswith('"'):
            value += '"'
            rest = rest[1:]
        elif not rest or rest.startswith(","):
            return value, at, rest
        else:
            return "text behind a closing quotation mark"
