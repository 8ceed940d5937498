"""A GPU drawn to scale: boxes over its memory slices."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nodeagent.terminal.page import Line, Span, Tone, cut, dim

_MIN_PITCH = 3
_MARGIN = 8  # columns for the words "before" and "after"


class Cell(NamedTuple):
    """Something on the memory slices `start` to `start + size`; one label a row."""

    start: int
    size: int
    labels: tuple[str, ...]
    tone: Tone = Tone.PLAIN


def drawing(rows: Sequence[tuple[str, Sequence[Cell]]], slots: int, width: int) -> tuple[Line, ...]:
    """A ruler over the GPU's `slots` memory slices, and a named bar below it for each row: boxes
    side by side, gaps as empty ones.
    """
    pitch = max(_MIN_PITCH, (width - _MARGIN - 1) // max(slots, 1))  # columns, with a left border
    numbers = "".join(str(slot).ljust(pitch) for slot in range(slots))
    lines: list[Line] = [(dim(" " * _MARGIN), dim(numbers))]
    for name, cells in rows:
        row = [_folded(cell, pitch) for cell in with_gaps_filled(cells, slots)]
        height = max(len(cell.labels) for cell in row)
        middle = (_label_row(row, number, pitch) for number in range(height))
        bar = (_edge(row, pitch, "┌┬┐"), *middle, _edge(row, pitch, "└┴┘"))
        for number, spans in enumerate(bar):
            title = name if number == 1 else ""
            lines.append((dim(title.ljust(_MARGIN)), *spans))
    return tuple(lines)


def with_gaps_filled(cells: Iterable[Cell], slots: int) -> Iterable[Cell]:
    """The cells in their order, with empty cells where none is, up to `slots` memory slices."""
    position = 0
    for cell in (*sorted(cells, key=lambda cell: cell.start), Cell(slots, 0, ())):
        if cell.start > position:
            yield Cell(position, cell.start - position, ())
        if cell.size:
            yield cell
        position = cell.start + cell.size


def _folded(cell: Cell, pitch: int) -> Cell:
    room = cell.size * pitch - 1
    return cell._replace(labels=tuple(row for label in cell.labels for row in fold(label, room)))


def fold(label: str, room: int) -> tuple[str, ...]:
    """The label in rows of at most `room` columns, broken before `+`, `-` or after a blank."""
    rows = [""]
    for word in re.findall(r"[+-]?[^ +-]+ ?", label):
        if rows[-1] and len(rows[-1]) + len(word.rstrip()) > room:
            rows.append("")
        rows[-1] += word
    return tuple(cut(row.rstrip(), room) for row in rows)


def _edge(row: Sequence[Cell], pitch: int, corners: str) -> Line:
    boxes = corners[1].join("─" * (cell.size * pitch - 1) for cell in row)
    return (dim(corners[0] + boxes + corners[2]),)


def _label_row(row: Sequence[Cell], number: int, pitch: int) -> Line:
    spans = [dim("│")]
    for cell in row:
        text = cell.labels[number] if number < len(cell.labels) else ""
        spans += [Span(text.ljust(cell.size * pitch - 1), cell.tone), dim("│")]
    return tuple(spans)
