"""Writes a manual page for each command into a folder, from the parser: `make man`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent import __version__
from nodeagent.cli.command_tree import Command, Word, command_tree
from nodeagent.cli.parser import EXIT_CODES


def main() -> None:
    """Write them all."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="utf-8")


def pages() -> dict[str, str]:
    """All pages, by the names of their files."""
    commands = command_tree().all()
    return {f"{_name(c)}.1": "".join(f"{row}\n" for row in _page(c)) for c in commands}


def _page(command: Command) -> Iterator[str]:
    name = _name(command)
    yield f'.TH "{_plain(name.upper())}" 1 "" "nodeagent {__version__}" "nodeagent"'
    yield ".SH NAME"
    summary = command.description.removesuffix(".")
    yield f"{_plain(name)} \\- {_plain(summary[0].lower() + summary[1:])}"
    yield ".SH SYNOPSIS"
    words = [word.value for word in command.arguments] or ["COMMAND"] * bool(command.commands)
    arguments = "".join(f" \\fI{_plain(word)}\\fR" for word in words)
    yield f"\\fB{_plain(' '.join(command.path))}\\fR [\\fIoptions\\fR]{arguments}"
    yield ".SH DESCRIPTION"
    yield _plain(command.description)
    if command.commands:
        yield ".SH COMMANDS"
        for child in command.commands:
            yield from _term(f"\\fB{_plain(child.name)}\\fR", child.description)
    for title, group in (("ARGUMENTS", command.arguments), ("OPTIONS", command.options)):
        if group:
            yield f".SH {title}"
            for word in group:
                yield from _term(_spelled(word), word.meaning)
    yield ".SH EXIT STATUS"
    yield _plain(EXIT_CODES)
    above = ["-".join(command.path[:-1])] if len(command.path) > 1 else []
    near = [*above, *map(_name, command.commands)]
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{_plain(page)}\\fR(1)" for page in near)


def _term(term: str, meaning: str) -> Iterator[str]:
    yield ".TP"
    yield term
    yield _plain(meaning)


def _spelled(word: Word) -> str:
    value = f"\\fI{_plain(word.value)}\\fR" if word.value else ""
    names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in word.names)
    choices = f" ({_plain(', '.join(word.choices))})" if word.choices else ""
    return " ".join(filter(None, (names, value))) + choices


def _name(command: Command) -> str:
    return "-".join(command.path)


def _plain(text: str) -> str:
    """Text that says the same in roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    main()
