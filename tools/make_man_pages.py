"""Writes a manual page for each command into a folder, from the parser: `make man`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent import __version__
from nodeagent.cli.parser import EXIT_CODES, Parser, build_parser


def main() -> None:
    """Write them all."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="utf-8")


def pages() -> dict[str, str]:
    """All pages, by the names of their files."""
    parsers = list(build_parser().with_subcommands())
    return {f"{_name(each)}.1": "\n".join([*_page(each), ""]) for each in parsers}


def _name(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace(" ", "-")


def _page(parser: Parser) -> Iterator[str]:
    name, summary = _name(parser), str(parser.description)
    below = parser.subcommands
    actions = [each for each in parser.actions if each.choices is not below]
    options = [each for each in actions if each.option_strings]
    arguments = [each for each in actions if not each.option_strings]
    yield f'.TH "{_plain(name.upper())}" 1 "" "nodeagent {__version__}" "nodeagent"'
    yield ".SH NAME"
    yield f"{_plain(name)} \\- {_plain(summary[0].lower() + summary[1:].removesuffix('.'))}"
    yield ".SH SYNOPSIS"
    words = [_value(each) for each in arguments] or ["\\fICOMMAND\\fR"] * bool(below)
    yield " ".join((f"\\fB{_plain(parser.prog)}\\fR", "[\\fIoptions\\fR]", *words))
    yield ".SH DESCRIPTION"
    yield _plain(summary)
    if below:
        yield ".SH COMMANDS"
        for child, its in below.items():
            yield from (".TP", f"\\fB{_plain(child)}\\fR", _plain(str(its.description)))
    for title, group in (("ARGUMENTS", arguments), ("OPTIONS", options)):
        if group:
            yield f".SH {title}"
            for action in group:
                names = ", ".join(f"\\fB{_plain(each)}\\fR" for each in action.option_strings)
                spelled = " ".join(filter(None, (names, _value(action))))
                yield from (".TP", spelled, _plain(str(action.help)))
    yield ".SH EXIT STATUS"
    yield _plain(EXIT_CODES)
    yield ".SH SEE ALSO"
    above = [name.rpartition("-")[0]] if "-" in name else []
    near = (*above, *map(_name, below.values()))
    yield ", ".join(f"\\fB{_plain(page)}\\fR(1)" for page in near)


def _value(action: argparse.Action) -> str:
    """What it takes, in italics; "" for a flag."""
    if action.nargs == 0:
        return ""
    choices = f" ({_plain(', '.join(action.choices))})" if action.choices else ""
    return f"\\fI{_plain(str(action.metavar or action.dest.upper()))}\\fR{choices}"


def _plain(text: str) -> str:
    """Text that says the same in roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    main()
