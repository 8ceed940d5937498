"""What `check` found, and entries of the runbook: one in full, or all of them in a line each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from nodeagent.runbook import Entry
from nodeagent.terminal.page import BLANK, Line, Span, Tone, cut, dim, line, table

_TONES = {"ok": Tone.GOOD, "warning": Tone.WARNING, "error": Tone.BAD}


def check_page(findings: Sequence[tuple[str, str, str, str]]) -> tuple[Line, ...]:
    """A page of findings: the check, `ok`, `warning` or `error`, what was found, a remedy."""
    width = max((len(check) for check, *_ in findings), default=0)
    lines: list[Line] = []
    for check, level, message, remedy in findings:
        lines.append(line(Span(f"{level:<9}", _TONES[level]), f"{check:<{width}}  {message}"))
        if remedy:
            lines.append(line(" " * (width + 11), remedy))
    return tuple(lines)


_MARGIN = "  "
_LABEL = 6  # columns of `look`, `mend` and `see`
_MIN_WIDTH = 20  # columns for sentences, however narrow the terminal is


def entries_page(entries: Sequence[Entry], width: int) -> tuple[Line, ...]:
    """Print each entry in full. Commands are not wrapped, so that they can be pasted."""
    lines: list[Line] = []
    for entry in entries:
        if lines:
            lines.append(BLANK)
        lines.append(line(Span(entry.title, Tone.TITLE), dim(f"  {entry.kind.value}")))
        room = max(width - len(_MARGIN), _MIN_WIDTH)
        sentences = textwrap.wrap(entry.means, room, break_on_hyphens=False)
        lines += [line(f"{_MARGIN}{row}") for row in sentences]
        lines += _part("look", entry.look)
        lines += _part("mend", entry.mend)
        lines += _part("see", [", ".join(entry.see)] if entry.see else [])
    return tuple(lines)


def _part(label: str, rows: Sequence[str]) -> Iterator[Line]:
    for row in rows:
        command, mark, comment = row.partition("#")
        yield line(dim(f"{_MARGIN}{label:<{_LABEL}}"), command, dim(mark + comment))
        label = ""


def list_page(entries: Sequence[Entry], width: int) -> tuple[Line, ...]:
    """A line for each entry, its first sentence cut where the terminal ends."""
    names = [(entry.title, entry.kind.value) for entry in entries]
    room = width - sum(max(map(len, column), default=0) + 2 for column in zip(*names, strict=True))
    rows = [
        (*name, cut(entry.first_sentence, max(room, _MIN_WIDTH)))
        for name, entry in zip(names, entries, strict=True)
    ]
    return table(("CODE", "KIND", "MEANS"), rows, right=frozenset())
