"""Lines, their tones, and how they are written."""

from __future__ import annotations

from nodeagent.terminal.colour import painted
from nodeagent.terminal.page import (
    BLANK,
    Span,
    Tone,
    in_ascii,
    line,
    plain_text,
    wrapped,
)


def test_ascii_replaces_what_a_terminal_may_not_know() -> None:
    """Boxes survive where only ASCII does."""
    assert plain_text(in_ascii([line("┌─┬─┐│└┴┘…█·")])) == "+-+-+|+++~#.\n"


def test_painted_text_says_the_same_as_plain_text() -> None:
    """Colours add codes and change no character, and end where their piece of text does."""
    lines = [line(Span("end it ", Tone.BAD), Span("", Tone.DIM), "y"), line(Span("x", Tone.GOES))]
    assert painted(lines) == "\x1b[1;31mend it \x1b[0my\n\x1b[9;31mx\x1b[0m\n"


def test_long_lines_are_broken_at_blanks() -> None:
    """No row is too wide, no word and no tone is lost, and what follows a break stands in."""
    found = wrapped([line("  run ", Span("kubectl drain gpu-node-7", Tone.BAD), " now")], 16)
    assert plain_text(found) == "  run kubectl\n    drain\n    gpu-node-7\n    now\n"
    bad = "".join(span.text for spans in found for span in spans if span.tone is Tone.BAD)
    assert bad == "kubectldraingpu-node-7"
    assert plain_text(wrapped([BLANK, line("a" * 10)], 4)) == "\naaaa\n  aa\n  aa\n  aa\n"
