"""What goes into annotations and messages is one printable line, and JSON that fits."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.views.text import compact_json, json_size, one_line, shortened, that_fit

LINES: tuple[tuple[str, str], ...] = (
    ("as it is", "as it is"),
    ("two\nlines\r\n and\ta tab", "two lines and a tab"),
    ("\x1b[31mred\x00\x7f", "[31mred"),
    ("turned\u202earound \ud800", "turned around"),
    ("Größe 8 – gut", "Größe 8 – gut"),
    ("", ""),
)


def test_one_line() -> None:
    """Nothing that is invisible, moves a cursor or cannot be encoded is left."""
    for text, line in LINES:
        assert line == one_line(text), text


@given(st.text(), st.integers(1, 50))
def test_shortened_text_is_never_longer_than_allowed(text: str, most: int) -> None:
    """And what is short enough is only put in one line."""
    short = shortened(text, most=most)
    assert len(short) <= most
    assert short.isprintable()
    assert short == one_line(text) or short.endswith("…")


@given(st.lists(st.text()), st.integers(2, 200))
def test_lists_are_cut_to_fit(entries: list[str], room: int) -> None:
    """What is kept is the beginning, takes the bytes that are told, and the rest is counted."""
    entries = [one_line(entry) for entry in entries]
    kept, left_out, size = that_fit(entries, room)
    assert size == json_size(kept) <= room
    assert kept == entries[: len(kept)]
    assert len(kept) + left_out == len(entries)
    assert json.loads(compact_json(kept)) == kept
