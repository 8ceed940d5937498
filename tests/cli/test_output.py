import io
import json
import sys

import pytest
import yaml

from nodeagent.cli.output import Output, complain
from nodeagent.errors import NodeagentError
from nodeagent.terminal.page import Span, Tone, line

_PAGE = [line("│", Span("word", Tone.BAD))]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


@pytest.mark.parametrize("name", ["text", "json", "yaml"])
def test_answers_are_utf_8_whatever_the_locale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no character at all, as in the name of a process, is escaped."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    output = Output(name, colour=False)
    output.page([line("│ä €")])
    output.document({"a": "│ä €"})
    assert not output.closed
    assert "│ä €" in raw.getvalue().decode()
    output.text("\udc80\n")
    assert raw.getvalue().endswith(b"\\udc80\n")


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


def test_complaints_are_one_or_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    complain(NodeagentError("a\nb", remedy="c\n d"))
    complain("plain")
    assert capsys.readouterr().err == "nodeagent: a b\n  c d\nnodeagent: plain\n"
