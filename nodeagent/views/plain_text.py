"""Text for places that others read back: one line, nothing invisible in it, no longer than allowed.

Also JSON for annotations, whose size is limited: lists are cut so that they fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_CUT = "…"


def one_line(text: str) -> str:
    """Without control characters and line ends; whatever is not printable becomes a space."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, *, most: int) -> str:
    """In one line of at most `most` characters; that it was longer, shows at its end."""
    line = one_line(text)
    return line if len(line) <= most else line[: most - 1] + _CUT


def compact_json(value: object) -> str:
    """Without spaces; equal values in equal order give equal text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_size(value: object) -> int:
    """Bytes of the compact JSON."""
    return len(compact_json(value).encode())


def that_fit(entries: Iterable[Any], room: int) -> tuple[list[Any], int, int]:
    """The first of the entries that fit a JSON list of so many bytes, how many are left out, and
    how many bytes the list takes.
    """
    kept: list[Any] = []
    left_out, size = 0, len("[]")
    for entry in entries:
        needed = json_size(entry) + (1 if kept else 0)
        if left_out or size + needed > room:
            left_out += 1
            continue
        kept.append(entry)
        size += needed
    return kept, left_out, size
