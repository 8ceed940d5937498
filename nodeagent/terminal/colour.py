"""Pages in colour, and pages that follow changes: the only module that knows rich."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

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


class Screen:
    """The whole terminal showing one page after the other; restored at the end."""

    def __init__(self) -> None:
        self._live = Live(screen=True, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, lines: Iterable[Line]) -> None:
        """Replace what is shown."""
        self._live.update(_text(lines), refresh=True)


def _text(lines: Iterable[Line]) -> Text:
    text = Text(no_wrap=True)
    for spans in lines:
        for span in spans:
            text.append(span.text, style=_STYLES[span.tone])
        text.append("\n")
    return text
