"""Standard output and error: one place that knows formats, widths, colours and closed pipes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from nodeagent.errors import NodeagentError
from nodeagent.terminal.page import Line, line, painted, plain_text
from nodeagent.text import printable

if TYPE_CHECKING:  # commands that only ask the agent do without it
    from nodeagent.plan.problems import Problem

_MAX_WIDTH = 120  # pictures gain nothing beyond
MIN_HEIGHT = 40  # lines of a page that is printed, which can be scrolled


class Output:
    """Writes a command's answer in the format that was asked for.

    A reader that goes away (`nodeagent plan | head -1`) ends the printing, never the command:
    what `apply` has begun it also finishes. `failure` is why the answer could not be written.
    """

    def __init__(self, output_format: str, *, colour: bool) -> None:
        self.format = output_format
        if isinstance(sys.stdout, TextIOWrapper):  # UTF-8 whatever the locale, as kubectl writes
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        self._stream: TextIO | None = sys.stdout
        self.painted = colour and _shows_colours(sys.stdout)
        self.failure: OSError | None = None

    @property
    def is_text(self) -> bool:
        return self.format == "text"

    @property
    def closed(self) -> bool:
        return self._stream is None

    @property
    def width(self) -> int:
        """Columns for pictures."""
        import shutil

        return min(shutil.get_terminal_size().columns, _MAX_WIDTH)

    @property
    def room(self) -> tuple[int, int]:
        """Columns and rows for text: those of the terminal, or all that a program or file takes."""
        import shutil

        if self._stream is None or not self._stream.isatty():
            return sys.maxsize, sys.maxsize
        return self.width, shutil.get_terminal_size().lines

    def page(self, lines: Iterable[Line]) -> None:
        """Write lines for a person, at once; nothing when the format is for programs."""
        if not self.is_text or self._stream is None:
            return
        lines = self.drawable(lines)
        self._write(painted(lines) if self.painted else plain_text(lines))

    def sentence(self, text: str) -> None:
        """Write one line for a person; nothing when the format is for programs."""
        self.page([line(text)])

    def drawable(self, lines: Iterable[Line]) -> Iterable[Line]:
        """The lines without characters that a terminal acts on: they may come from another user's
        program at the agent's socket.
        """
        return tuple(tuple(s._replace(text=printable(s.text)) for s in spans) for spans in lines)

    def document(self, data: Mapping[str, object]) -> None:
        """Write an answer for programs, as JSON or YAML; nothing when the format is text."""
        if not self.is_text:
            self._write(formatted(data, self.format))

    def text(self, text: str) -> None:
        """Write text as it is, whatever the format."""
        self._write(text)

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                self.failure = error  # such as a full disk: what was asked for is lost
            self._stream = None
            discard_standard_output()


def formatted(data: Mapping[str, object], output_format: str) -> str:
    """The data as `json` or `yaml`, keys in their own order.

    What a terminal might act on is escaped, as pages have none of it. YAML is without anchors,
    which the readers of documents refuse.
    """
    if output_format == "json":
        return json_text(data, indent=2) + "\n"
    import yaml

    plain = "\\u" not in json_text(data)  # else it may have what is no character at all
    base = yaml.CSafeDumper if plain else yaml.SafeDumper
    dumper = type("Dumper", (base,), {"ignore_aliases": lambda *_: True})
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=plain)


def json_text(data: Mapping[str, object], indent: int | None = None) -> str:
    """The data as JSON; what a terminal might act on is escaped."""
    import json

    return re.sub(r"[^\n -~]", _escaped, json.dumps(data, indent=indent, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    return re.sub("....", r"\\u\g<0>", found[0].encode("utf-16-be", "surrogatepass").hex())


def complain(error: NodeagentError | str, remedy: str = "") -> None:
    """One line about what is wrong and, when known, one about what would be right."""
    if isinstance(error, NodeagentError):
        message, remedy = error.message, error.remedy
    else:
        message = error
    text = f"nodeagent: {_one_line(message)}\n" + (f"  {_one_line(remedy)}\n" if remedy else "")
    write_to_stderr(text)


def write_to_stderr(text: str) -> None:
    """Write for people; where that fails, the exit code and the log still say it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def complain_about(problems: Sequence[Problem]) -> None:
    """The first problem in full, and how many more there are."""
    first, *others = problems
    place = f"{first.path}: " if first.path else ""
    more = f" (and {len(others)} more; nodeagent plan -o json shows all)" if others else ""
    complain(place + first.message + more, first.remedy)


def discard_standard_output() -> None:
    """Let the interpreter's last flush go nowhere, where a closed pipe cannot hurt it."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return  # no real stream: nothing to flush into
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _shows_colours(stream: TextIO | None) -> bool:
    # https://no-color.org: any non-empty value switches colours off.
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream is not None and stream.isatty()
