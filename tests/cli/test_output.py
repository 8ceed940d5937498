from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from nodeagent.cli.output import Output, complain
from nodeagent.errors import NodeagentError
from nodeagent.terminal.page import Span, Tone, line

_PAGE = [line("│", Span("word", Tone.BAD))]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_no_colours_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    Output("text", colour=True).page(_PAGE)
    assert capsys.readouterr().out == "│word\n"


@pytest.mark.parametrize(
    ("colour", "variables", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_on_a_terminal_can_be_refused(
    colour: bool, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    Output("text", colour=colour).page(_PAGE)
    assert ("\x1b[" in terminal.getvalue()) is coloured
    assert coloured or terminal.getvalue() == "│word\n"


def test_drawing_characters_where_they_can_be_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Output("text", colour=False).page(_PAGE)
    assert raw.getvalue() == b"|word\n"


@pytest.mark.parametrize("name", ["text", "json", "yaml"])
def test_answers_reach_a_stream_of_any_encoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    output = Output(name, colour=False)
    output.page([line("ä €")])
    output.document({"a": "ä €"})
    assert not output.closed
    if name == "text":
        assert b"\\u20ac" in raw.getvalue()
    else:
        assert yaml.safe_load(raw.getvalue()) == {"a": "ä €"}


def test_formats_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("text", "json", "yaml"):
        output = Output(name, colour=False)
        output.page([line("words")])
        output.document({"b": 1, "a": ["ä"]})
        written = capsys.readouterr().out
        if name == "text":
            assert written == "words\n"
        else:
            data = json.loads(written) if name == "json" else yaml.safe_load(written)
            assert list(data.items()) == [("b", 1), ("a", ["ä"])]


def test_a_reader_that_goes_away_ends_the_printing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _ClosedPipe())
    output = Output("text", colour=False)
    output.page(_PAGE)
    assert output.closed
    output.page(_PAGE)


def test_an_answer_that_cannot_be_written_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        output = Output("text", colour=False)
        output.page(_PAGE)
        output.page(_PAGE)
        monkeypatch.undo()
    assert output.failure is not None
    assert output.closed


def test_no_standard_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has none when the descriptor was closed at the start."""
    monkeypatch.setattr(sys, "stdout", None)
    output = Output("text", colour=True)
    output.page(_PAGE)
    output.text("x")


def test_complaints_are_one_or_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    complain(NodeagentError("a\nb", remedy="c\n d"))
    complain("plain")
    assert capsys.readouterr().err == "nodeagent: a b\n  c d\nnodeagent: plain\n"
