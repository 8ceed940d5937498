"""Writes a manual page for each command into a folder, from the parser: `make man`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent import __version__
from nodeagent.cli.commands import all_options
from nodeagent.cli.completion import all_commands
from nodeagent.cli.declarations import Command, Option
from nodeagent.cli.parser import EXIT_CODES


def main() -> None:
    """Write them all."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="utf-8")


def pages() -> dict[str, str]:
    """All pages, by the names of their files."""
    rows = {"-".join(path): _page(path, command) for path, command in all_commands()}
    return {f"{name}.1": "".join(f"{row}\n" for row in page) for name, page in rows.items()}


def _page(path: tuple[str, ...], command: Command) -> Iterator[str]:
    name, below = "-".join(path), command.subcommands()
    options = [each for each in all_options(command) if not each.is_argument]
    arguments = [each for each in all_options(command) if each.is_argument]
    yield f'.TH "{_plain(name.upper())}" 1 "" "nodeagent {__version__}" "nodeagent"'
    yield ".SH NAME"
    summary = command.sentence.removesuffix(".")
    yield f"{_plain(name)} \\- {_plain(summary[0].lower() + summary[1:])}"
    yield ".SH SYNOPSIS"
    words = [word.value for word in arguments] or ["COMMAND"] * bool(below)
    named = "".join(f" \\fI{_plain(word)}\\fR" for word in words)
    yield f"\\fB{_plain(' '.join(path))}\\fR [\\fIoptions\\fR]{named}"
    yield ".SH DESCRIPTION"
    yield _plain(command.sentence)
    if below:
        yield ".SH COMMANDS"
        for child, its in below.items():
            yield from _term(f"\\fB{_plain(child)}\\fR", its.sentence)
    for title, group in (("ARGUMENTS", arguments), ("OPTIONS", options)):
        if group:
            yield f".SH {title}"
            for word in group:
                yield from _term(_spelled(word), word.details["help"])
    yield ".SH EXIT STATUS"
    yield _plain(EXIT_CODES)
    above = ["-".join(path[:-1])] if len(path) > 1 else []
    near = [*above, *(f"{name}-{child}" for child in below)]
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{_plain(page)}\\fR(1)" for page in near)


def _term(term: str, meaning: str) -> Iterator[str]:
    yield ".TP"
    yield term
    yield _plain(meaning)


def _spelled(word: Option) -> str:
    value = f"\\fI{_plain(word.value)}\\fR" if word.value else ""
    names = "" if word.is_argument else ", ".join(f"\\fB{_plain(n)}\\fR" for n in word.names)
    choices = f" ({_plain(', '.join(word.choices))})" if word.choices else ""
    return " ".join(filter(None, (names, value))) + choices


def _plain(text: str) -> str:
    """Text that says the same in roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    main()
