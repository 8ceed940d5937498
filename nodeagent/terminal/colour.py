"""Pages in colour, and pages that follow changes: the only module that knows rich."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nodeagent.terminal.page import Line, Tone

_STYLES = {
    Tone.PLAIN: "",
    Tone.TITLE: "bold",
    Tone.DIM: "dim",
    Tone.STAYS: "green",
    Tone.NEW: "bold cyan",
    Tone.GOES: "red strike",
    Tone.IN_USE: "bold yellow",
    Tone.GOOD: "green",
    Tone.WARNING: "yellow",
    Tone.BAD: "bold red",
}


def painted(lines: Iterable[Line]) -> str:
    """The lines with the terminal's colour codes, each ended by a newline."""
    console = Console(force_terminal=True, highlight=False, soft_wrap=True, emoji=False)
    with console.capture() as capture:
        console.print(_text(lines), end="")
    return capture.get()


@contextmanager
def screen() -> Iterator[Callable[[Iterable[Line]], None]]:
    """The whole terminal for one page after the other, by a call each; restored at the end.

    A line that is too long is cut off.
    """
    with Live(screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda lines: live.update(_text(lines), refresh=True)


def _text(lines: Iterable[Line]) -> Text:
    text = Text(no_wrap=True)
    for spans in lines:
        for span in spans:
            text.append(span.text, style=_STYLES[span.tone])
        text.append("\n")
    return text
