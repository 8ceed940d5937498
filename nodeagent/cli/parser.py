"""Parsing the command line."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from nodeagent.catalogue import section
from nodeagent.cli.commands import COMMANDS, GLOBAL_OPTIONS, PROGRAM
from nodeagent.cli.declarations import Command, Option
from nodeagent.errors import UsageError

EXIT_CODES = (
    "0 done, matches, or nothing to do; 1 does not match, cannot be satisfied on this "
    "card, or failed; 2 bad usage or bad document; 3 blocked by something in use. When GPUs end "
    "differently, 2 comes before 1, and 1 before 3."
)


class Parser(argparse.ArgumentParser):
    """Reports bad usage as an error for the reader in place of a usage text.

    `fill` adds the options when they are needed: a command line uses one command of many, and the
    options of all would take a tenth of the time that a command takes.
    """

    def __init__(self, *, command: Command, **details: Any) -> None:
        self._command = command
        self._details = details
        self._filled = False

    def fill(self) -> None:
        """Make the parser with its options, once."""
        if self._filled:
            return
        self._filled = True
        command, is_top = self._command, self._command is PROGRAM
        super().__init__(
            allow_abbrev=False, add_help=False, description=command.sentence, **self._details
        )
        _add(self, command.general)
        # Accepted before and after the command; only the topmost parser knows the defaults, so
        # that what was said before a command is not forgotten after it.
        default = {} if is_top else {"default": argparse.SUPPRESS}
        _add(self.add_argument_group("options of every command"), GLOBAL_OPTIONS, **default)
        if command.one_of:
            _add(self.add_mutually_exclusive_group(required=True), command.one_of)
        _add(self, command.options)
        if is_top:
            self._add_commands(dest="command", metavar="COMMAND", required=True)
        elif command.subcommands():
            self._add_commands(dest="subcommand", metavar="WHAT")

    def _add_commands(self, **details: Any) -> None:
        parsers = self.add_subparsers(**details)
        epilog = self.epilog if self._command is PROGRAM else None
        for name, command in self._command.subcommands().items():
            parsers.add_parser(name, help=command.summary, epilog=epilog, command=command)

    @property
    def actions(self) -> list[argparse.Action]:
        """The options and arguments of the parser; argparse has no public list of them."""
        self.fill()
        return self._actions

    @property
    def subcommands(self) -> dict[str, Parser]:
        """The parsers of the commands below it."""
        return next((a.choices for a in self.actions if isinstance(a.choices, dict)), {})

    def with_subcommands(self) -> Iterator[Parser]:
        """This parser and all below it, filled."""
        self.fill()
        yield self
        for below in self.subcommands.values():
            yield from below.with_subcommands()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse does, with the nearest of the choices in the remedy."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            remedy = _meant(str(value), map(str, action.choices or ()), self.prog)
            raise UsageError(str(error), remedy=remedy) from None


def parse(argv: list[str] | None) -> Namespace:
    """Read the command line; raises UsageError, or SystemExit after --help and --version."""
    options = Namespace()
    _, unknown = build_parser().parse_known_args(argv, namespace=options)
    if unknown:
        raise _unrecognized(unknown, options)
    subcommands = COMMANDS[options.command].subcommands()
    if subcommands and options.subcommand is None:
        raise UsageError.of("noSubcommand", command=options.command, known=", ".join(subcommands))
    return options


def _unrecognized(unknown: list[str], options: Namespace) -> UsageError:
    """The error for unknown options, with the nearest of the command's."""
    command, words = COMMANDS[options.command], ["nodeagent", options.command]
    subcommands = command.subcommands()
    if subcommands and options.subcommand is not None:
        command, words = subcommands[options.subcommand], [*words, options.subcommand]
    known = (*GLOBAL_OPTIONS, *command.options, *command.one_of)
    spellings = (name for names, _ in known for name in names if name.startswith("--"))
    remedy = _meant(unknown[0].partition("=")[0], spellings, " ".join(words))
    return UsageError(f"unrecognized arguments: {' '.join(unknown)}", remedy=remedy)


def _meant(word: str, known: Iterable[str], program: str) -> str:
    """A remedy: what was probably meant, and where to read more."""
    from nodeagent.text import did_you_mean

    same = next(
        (does for names, does in section("mig-parted").items() if word in names.split()), ""
    )
    meant = f"{same};" if same else did_you_mean(word, known, cutoff=0.7)
    return f"{meant} see {program} --help".lstrip()


def _add(group: argparse._ActionsContainer, options: Iterable[Option], **default: Any) -> None:
    for names, details in options:
        group.add_argument(*names, **{**details, **default})


def build_parser() -> Parser:
    """The whole command line."""
    return Parser(prog="nodeagent", epilog=f"exit codes: {EXIT_CODES}", command=PROGRAM)
