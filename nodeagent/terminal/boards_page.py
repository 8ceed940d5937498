"""The boards that can be simulated, and how well each is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nodeagent.terminal.page import Line, Span, Tone, count, dim, gibibytes, indent, line

if TYPE_CHECKING:  # the simulator is the commands' alone
    from nodeagent.simulation.boards import Board

_TONES = {
    "confirmed": Tone.GOOD,
    "single-source": Tone.PLAIN,
    "inferred": Tone.WARNING,
    "assumed": Tone.BAD,
}
_COLUMN = 26  # for the names of profiles and cards: the longest has 24 letters


def boards_page(boards: Iterable[Board]) -> tuple[Line, ...]:
    """Each board with its profiles; the evidence is that of a profile's weakest field."""
    return tuple(spans for board in boards for spans in _board(board))


def _board(board: Board) -> list[Line]:
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
