"""A GPU drawn to scale: boxes over its memory slices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nodeagent.terminal.page import Line, Span, Tone, dim

_NARROWEST = 3
_MARGIN = 8  # columns for the words "before" and "after"


@dataclass(frozen=True, slots=True)
class Cell:
    """Something on the memory slices `start` to `start + size`; one label a row."""

    start: int
    size: int
    labels: tuple[str, ...]
    tone: Tone = Tone.PLAIN


def ruler(slots: int, width: int) -> Line:
    """The numbers of the slices, over where their boxes begin."""
    pitch = _pitch(slots, width)
    return (Span("".join(str(slot).ljust(pitch) for slot in range(slots)), Tone.DIM),)


def bar(cells: Iterable[Cell], slots: int, width: int) -> tuple[Line, ...]:
    """The boxes side by side, `width` columns wide at most, gaps as empty boxes."""
    pitch = _pitch(slots, width)
    row = [_folded(cell, pitch) for cell in _without_gaps(sorted(cells, key=_start), slots)]
    height = max(len(cell.labels) for cell in row)
    middle = tuple(_label_row(row, number, pitch) for number in range(height))
    return (_edge(row, pitch, "┌┬┐"), *middle, _edge(row, pitch, "└┴┘"))


def _start(cell: Cell) -> int:
    return cell.start


def _pitch(slots: int, width: int) -> int:
    """Columns for each slice, its left border included."""
    return max(_NARROWEST, (width - 1) // max(slots, 1))


def _without_gaps(cells: Sequence[Cell], slots: int) -> Iterable[Cell]:
    position = 0
    for cell in cells:
        if cell.start > position:
            yield Cell(position, cell.start - position, ())
        yield cell
        position = cell.start + cell.size
    if position < slots:
        yield Cell(position, slots - position, ())


def _folded(cell: Cell, pitch: int) -> Cell:
    room = cell.size * pitch - 1
    return replace(cell, labels=tuple(row for label in cell.labels for row in fold(label, room)))


def fold(label: str, room: int) -> tuple[str, ...]:
    """The label in rows of at most `room` columns, broken before `+`, `-` or after a blank."""
    rows = [""]
    for word in re.findall(r"[+-]?[^ +-]+ ?", label):
        if rows[-1] and len(rows[-1]) + len(word.rstrip()) > room:
            rows.append("")
        rows[-1] += word
    return tuple(_cut(row.rstrip(), room) for row in rows)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _edge(row: Sequence[Cell], pitch: int, corners: str) -> Line:
    boxes = corners[1].join("─" * (cell.size * pitch - 1) for cell in row)
    return (Span(corners[0] + boxes + corners[2], Tone.DIM),)


def _label_row(row: Sequence[Cell], number: int, pitch: int) -> Line:
    border = Span("│", Tone.DIM)
    spans = [border]
    for cell in row:
        text = cell.labels[number] if number < len(cell.labels) else ""
        spans += [Span(text.ljust(cell.size * pitch - 1), cell.tone), border]
    return tuple(spans)


def drawing(rows: Sequence[tuple[str, Sequence[Cell]]], slots: int, width: int) -> tuple[Line, ...]:
    """Named bars below a ruler of memory slices."""
    room = width - _MARGIN
    lines = [(dim(" " * _MARGIN), *ruler(slots, room))]
    for name, cells in rows:
        for number, spans in enumerate(bar(cells, slots, room)):
            title = name if number == 1 else ""
            lines.append((dim(title.ljust(_MARGIN)), *spans))
    return tuple(lines)
