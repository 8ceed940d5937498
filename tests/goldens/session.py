"""Command lines as in a shell, run by the program within this process, and the transcript."""

import contextlib
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent.cli import main

_CHOICE = re.compile(r"\{(\w[\w-]*(?:,\w[\w-]*)+)\}")  # {text,json}: one command for each
_HERE = " <<< "  # what follows is the standard input
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Session:
    """Runs commands in `folder`, one after the other, with the environment of no one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def transcript(self, command: str) -> str:
        return "".join(self._one(each) for each in alternatives(command))

    def _one(self, command: str) -> str:
        words, _, text = command.partition(_HERE)
        code, out, err = self.run(shlex.split(words), "".join(shlex.split(text)))
        errors = "".join(f"stderr: {row}\n" for row in err.splitlines())
        return f"$ {command}\n{closed(out)}{errors}exit code: {code}\n\n"

    def run(self, words: list[str], text: str = "") -> tuple[int, str, str]:
        """Exit code, standard output and standard error; NAME=value may stand before the name."""
        settings = dict(word.split("=", 1) for word in itertools.takewhile(_is_setting, words))
        program, *arguments = words[len(settings) :]
        assert program == "nodeagent", f"not a command of the program: {words}"
        out, err = io.StringIO(), io.StringIO()
        with (
            _surroundings(self.folder, settings, text),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(arguments)
        return code, out.getvalue(), err.getvalue()


def alternatives(command: str) -> list[str]:
    found = _CHOICE.search(command)
    if found is None:
        return [command]
    start, end = found.span()
    return [
        each
        for word in found[1].split(",")
        for each in alternatives(command[:start] + word + command[end:])
    ]


def closed(text: str) -> str:
    """The text with a last line that ends, and a remark where it did not."""
    return text if not text or text.endswith("\n") else f"{text}\n(no end of line)\n"


def _is_setting(word: str) -> bool:
    return re.match(r"[A-Z_]+=", word) is not None


@contextlib.contextmanager
def _surroundings(folder: Path, settings: dict[str, str], text: str) -> Iterator[None]:
    """Directory, environment and standard input of a command."""
    before, stdin = dict(os.environ), sys.stdin
    python = os.pathsep.join([str(Path.cwd()), *before.get("PYTHONPATH", "").split(os.pathsep)])
    try:
        os.environ.clear()
        # Wide enough for no picture to be cut, and the same on every machine.
        os.environ.update(_ENVIRONMENT | {"COLUMNS": "100", "PYTHONPATH": python} | settings)
        sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        with contextlib.chdir(folder):
            yield
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(before)
