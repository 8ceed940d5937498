"""The findings of a preflight check."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.terminal.page import Line, Span, Tone, line

_TONES = {"ok": Tone.GOOD, "warning": Tone.WARNING, "error": Tone.BAD}


def check_page(findings: Sequence[tuple[str, str, str, str]]) -> tuple[Line, ...]:
    """`findings`: what was looked at, `ok`, `warning` or `error`, what was found, a remedy."""
    width = max((len(check) for check, *_ in findings), default=0)
    lines: list[Line] = []
    for check, level, message, remedy in findings:
        lines.append(line(Span(f"{level:<9}", _TONES[level]), f"{check:<{width}}  {message}"))
        if remedy:
            lines.append(line(" " * (width + 11), remedy))
    return tuple(lines)
