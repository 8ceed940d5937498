"""The boards that can be simulated, and how well each is known."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.simulation.boards import KnownBoard
from nodeagent.terminal.page import Line, Span, Tone, count, dim, gibibytes, indent, line

_TONES = {
    "confirmed": Tone.GOOD,
    "single-source": Tone.PLAIN,
    "inferred": Tone.WARNING,
    "assumed": Tone.BAD,
}
_COLUMN = 24  # for the names of profiles and cards


def boards_page(boards: Iterable[KnownBoard]) -> tuple[Line, ...]:
    """Each board with its profiles; the evidence is that of a profile's weakest field."""
    return tuple(spans for board in boards for spans in _board(board))


def _board(board: KnownBoard) -> list[Line]:
    facts = f"{board.product}, {gibibytes(board.memory)}"
    title = line(Span(board.name.ljust(_COLUMN), Tone.TITLE), facts)
    rows = [
        line(
            f"{profile.name:<{_COLUMN - 2}}{profile.max_instances} x {gibibytes(profile.memory)}  ",
            Span(profile.status, _TONES.get(profile.status, Tone.PLAIN)),
        )
        for profile in board.profiles
    ]
    if not rows:
        rows.append(line(dim("no MIG")))
    if board.assumed:
        fields = count(len(board.assumed), "field")
        rows.append(line(dim(f"without evidence, {fields}: {', '.join(board.assumed)}")))
    return [title, *indent(rows, 2)]
