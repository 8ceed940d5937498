"""The command line as values, read from the parser: for shell completion and manual pages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.cli.parser import Parser, build_parser
from nodeagent.runbook.lookup import runbook
from nodeagent.simulation.boards import board_names


class Word(NamedTuple):
    """An option, or an argument, which has no `names`. `value` names what it takes, "" for a flag;
    `choices` are all that it takes, where there are some, `suggested` some of what it takes;
    `repeated`: it takes several.
    """

    names: tuple[str, ...]
    meaning: str
    value: str
    choices: tuple[str, ...]
    suggested: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def offered(self) -> tuple[str, ...]:
        """What a shell completes."""
        return self.choices or self.suggested

    @property
    def takes_file(self) -> bool:
        return self.value == "FILE"

    @property
    def takes_directory(self) -> bool:
        return self.value == "DIR"


class Command(NamedTuple):
    """A command by its words (`nodeagent`, `simulate`, `occupy`), with the commands below it."""

    path: tuple[str, ...]
    description: str
    options: tuple[Word, ...]
    arguments: tuple[Word, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return self.path[-1]

    def all(self) -> Iterator[Command]:
        """This one and those below it."""
        yield self
        for command in self.commands:
            yield from command.all()


def command_tree() -> Command:
    """The whole command line."""
    parser = build_parser()
    return _command(parser, ("nodeagent",))


def _command(parser: Parser, path: tuple[str, ...]) -> Command:
    parser.fill()
    below: list[Command] = []
    words: list[Word] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - nor a public type
            below += [_command(child, (*path, name)) for name, child in action.choices.items()]
        else:
            words.append(_word(action))
    return Command(
        path,
        parser.description or "",
        tuple(word for word in words if word.names),
        tuple(word for word in words if not word.names),
        tuple(below),
    )


def _word(action: argparse.Action) -> Word:
    choices = tuple(map(str, action.choices or ()))
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    suggested = _SUGGESTED[action.dest]() if action.dest in _SUGGESTED else ()
    names, repeated = tuple(action.option_strings), action.nargs == "*"
    return Word(names, action.help or "", value, choices, suggested, repeated)


def _codes() -> tuple[str, ...]:
    """What `explain` knows, each in one word, as it takes them, too."""
    spellings = (entry.code.replace("'", "").replace(" ", "-") for entry in runbook().entries)
    return tuple(dict.fromkeys(spellings))


_SUGGESTED: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "simulate": board_names,
    "codes": _codes,
}
