"""Pages in colour, and pages that take the whole terminal, in the codes that all terminals know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from nodeagent.terminal.page import Line, Tone

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
_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # and its cursor
_CLEARED = "\x1b[H\x1b[J"


def painted(lines: Iterable[Line]) -> str:
    """The lines with the terminal's colour codes, each ended by a newline."""
    return "".join("".join(_painted(*span) for span in spans) + "\n" for spans in lines)


def _painted(text: str, tone: Tone) -> str:
    return f"\x1b[{_STYLES[tone]}m{text}\x1b[0m" if text and tone in _STYLES else text


@contextmanager
def screen(terminal: TextIO) -> Iterator[Callable[[Iterable[Line]], None]]:
    """The whole terminal for one page after the other, by a call each; restored at the end."""

    def show(lines: Iterable[Line]) -> None:
        # No newline at the end, which would move the page up.
        terminal.write(_CLEARED + painted(lines).removesuffix("\n"))
        terminal.flush()

    terminal.write(_OTHER_SCREEN)
    try:
        yield show
    finally:
        terminal.write(_FIRST_SCREEN)
        terminal.flush()
