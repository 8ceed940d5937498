"""Lines of text whose parts carry a meaning (a tone) in place of a colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.text import alike, gpus_words, quantity

if TYPE_CHECKING:  # what only shows the agent's answers does without it
    from nodeagent.plan.observed import Gpu


class Tone(StrEnum):
    """What a piece of text means; `painted` gives it a look."""

    PLAIN = "plain"
    TITLE = "title"
    DIM = "dim"
    STAYS = "stays"
    NEW = "new"
    GOES = "goes"
    IN_USE = "inUse"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Span(NamedTuple):
    """A piece of one line."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]
Json = Mapping[str, Any]  # an answer of the agent, or a part of it

BLANK: Line = ()


def line(*parts: str | Span) -> Line:
    """One line; bare strings have no tone."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def joined(*parts: Sequence[Line]) -> tuple[Line, ...]:
    """The parts that have lines, with an empty one between two."""
    return tuple(row for part in parts if part for row in (BLANK, *part))[1:]


def indent(lines: Iterable[Line], by: int) -> tuple[Line, ...]:
    """The lines moved to the right by so many columns; empty ones stay empty."""
    margin = Span(" " * by)
    return tuple((margin, *spans) if spans else BLANK for spans in lines)


def plain_text(lines: Iterable[Line]) -> str:
    """The lines without tones, each ended by a newline, no blanks at their ends."""
    return "".join(_text(spans).rstrip() + "\n" for spans in lines)


def _text(spans: Line) -> str:
    return "".join(span.text for span in spans)


_TONES = {
    **dict.fromkeys(("InSync", "Ready", "ok", "done", "keep", "confirmed"), Tone.GOOD),
    **dict.fromkeys(("Working", "Starting", "Limiting", "Preparing", "info"), Tone.NEW),
    **dict.fromkeys(("new", "changes", "changed", "smaller"), Tone.NEW),
    **dict.fromkeys(("Blocked", "Draining", "Backoff", "Down", "Waiting"), Tone.WARNING),
    **dict.fromkeys(("Releasing", "warning", "undone", "larger", "inferred"), Tone.WARNING),
    **dict.fromkeys(("Rejected", "Failed", "Fault", "Unreadable", "error"), Tone.BAD),
    **dict.fromkeys(("failed", "assumed"), Tone.BAD),
    "stays": Tone.STAYS,
    "idle": Tone.STAYS,
    "goes": Tone.GOES,
    "in use": Tone.IN_USE,
    "half made": Tone.WARNING,
    "skipped": Tone.DIM,
    "not known": Tone.DIM,
}


def toned(word: object, other: Tone = Tone.PLAIN) -> Span:
    """A word for a phase, state, severity, result or fate in its tone; any other in `other`."""
    text = str(word)
    return Span(text, _TONES.get(text, other))


# --- in colour ------------------------------------------------------------------------------------


_BOLD, _DIM, _STRUCK = "1", "2", "9"
_RED, _GREEN, _YELLOW, _CYAN = "31", "32", "33", "36"
_STYLES = {
    Tone.TITLE: _BOLD,
    Tone.DIM: _DIM,
    Tone.STAYS: _GREEN,
    Tone.NEW: f"{_BOLD};{_CYAN}",
    Tone.GOES: f"{_STRUCK};{_RED}",
    Tone.IN_USE: f"{_BOLD};{_YELLOW}",
    Tone.GOOD: _GREEN,
    Tone.WARNING: _YELLOW,
    Tone.BAD: f"{_BOLD};{_RED}",
}


def painted(lines: Iterable[Line]) -> str:
    """The lines with the terminal's colour codes, each ended by a newline."""
    return "".join("".join(_painted(*span) for span in spans) + "\n" for spans in lines)


def _painted(text: str, tone: Tone) -> str:
    return f"\x1b[{_STYLES[tone]}m{text}\x1b[0m" if text and tone in _STYLES else text


# --- rows -----------------------------------------------------------------------------------------


def wrapped(lines: Iterable[Line], width: int) -> tuple[Line, ...]:
    """The lines in rows of at most `width` columns, broken at blanks where there are some.

    What comes after a break begins two columns further to the right than the line.
    """
    return tuple(row for spans in lines for row in _rows(spans, width))


def _rows(spans: Line, width: int) -> Iterator[Line]:
    text = _text(spans).rstrip()
    indented = len(text) - len(text.lstrip())
    margin = min(indented + 2, width // 2)
    begin, lead, room = 0, BLANK, width
    while len(text) - begin > room:
        blank = text.rfind(" ", begin + (0 if begin else indented) + 1, begin + room + 1)
        end = blank if blank > 0 else begin + room
        yield (*lead, *_part(spans, begin, end))
        begin = end + (blank > 0)
        lead, room = (Span(" " * margin),), width - margin
    yield (*lead, *_part(spans, begin, len(text)))


def row_count(lines: Iterable[Line], width: int) -> int:
    """How many rows of `width` columns the lines take."""
    return len(wrapped(lines, width))


def at_most(
    lines: Sequence[Line], room: int, width: int, *, keep: int = 0, more: str
) -> tuple[Line, ...]:
    """The lines in at most `room` rows. Where they take more, a note stands for some in the middle:
    their number, and `more`, which says how to see them. The first `keep` lines stay.
    """
    if room <= 0:
        return ()
    rows = [row_count((spans,), width) for spans in lines]
    if sum(rows) <= room:
        return tuple(lines)
    for gone in range(1, len(lines) + 1):
        first = max((len(lines) - gone) // 2, keep)
        note = line(dim(f"... {quantity(gone, 'line')} left out; {more}"))
        left = sum(rows[:first]) + sum(rows[first + gone :])
        if left + row_count((note,), width) <= room:
            return (*lines[:first], note, *lines[first + gone :])
    return tuple(lines[:room])


def in_one_row(spans: Line, width: int) -> Line:
    """The line in at most `width` columns, with an ellipsis where it was longer."""
    if len(_text(spans)) <= width:
        return spans
    *first, (text, tone) = _part(spans, 0, width)
    return (*first, Span(f"{text[:-1]}…", tone))


def _part(spans: Line, begin: int, end: int) -> Iterator[Span]:
    for text, tone in spans:  # `begin` and `end` count from the beginning of this span
        if piece := text[max(begin, 0) : max(end, 0)]:
            yield Span(piece, tone)
        begin, end = begin - len(text), end - len(text)


def table(header: Sequence[str], rows: Iterable[Sequence[str | Span]]) -> tuple[Line, ...]:
    """Columns two blanks apart, as wide as their widest cell; right-aligned below a title that
    begins with `>`.
    """
    cells = [line(*(dim(title.removeprefix(">")) for title in header)), *(line(*r) for r in rows)]
    widths = [max(len(row[i].text) for row in cells) for i in range(len(header))]
    sides = [">" if title.startswith(">") else "<" for title in header]
    return tuple(
        tuple(
            part
            for (text, tone), side, width in zip(row, sides, widths, strict=True)
            for part in (Span("  "), Span(f"{text:{side}{width}}", tone))
        )[1:]
        for row in cells
    )


def remark(
    message: str, remedy: str = "", *, path: str = "", tone: Tone = Tone.WARNING
) -> tuple[Line, ...]:
    """A problem as a line: `! PATH: MESSAGE`, and a second one with its remedy, if it has one."""
    found = line(Span(f"! {path}: {message}" if path else f"! {message}", tone))
    return (found, line(f"  {remedy}")) if remedy else (found,)


def gpu_blocks(bodies: Iterable[tuple[Gpu, tuple[Line, ...]]]) -> list[Line]:
    """Put each GPU's lines below its title; GPUs of one model with equal lines share a block."""
    groups = alike(((gpu.name or "unnamed GPU", body), gpu) for gpu, body in bodies)
    lines: list[Line] = []
    for (name, body), gpus in groups.items():
        where = Span(gpus_words(gpu.index for gpu in gpus), Tone.TITLE)
        alone = (f"  {name}", dim(f"  {gpus[0].uuid}"))
        title = alone if len(gpus) == 1 else (f"  {len(gpus)} x {name}",)
        lines += [line(where, *title), *indent(body, 2), BLANK]
    return lines


def cut(text: str, most: int) -> str:
    """The text in at most `most` columns, with an ellipsis where it was longer."""
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def dim(text: str) -> Span:
    """Text of lesser weight."""
    return Span(text, Tone.DIM)
