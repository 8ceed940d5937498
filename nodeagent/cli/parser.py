"""Parsing the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

from nodeagent import __version__
from nodeagent.cli.commands import COMMANDS, GLOBAL_OPTIONS
from nodeagent.cli.declarations import Command
from nodeagent.cli.options import Options
from nodeagent.errors import UsageError

EXIT_CODES = (
    "0 done, matches, or nothing to do; 1 does not match, cannot be satisfied on this "
    "card, or failed; 2 bad usage or bad document; 3 blocked by something in use. When GPUs end "
    "differently, 2 comes before 1, and 1 before 3."
)


# What nvidia-mig-parted has and nodeagent has not, with what does it here.
_MIG_PARTED = {
    "-s": "nothing is reset unless --reset whenIdle says so",
    "-m": "write `mig: enabled` or `mig: disabled` in a plan",
    "-k": "stop other users of the GPUs before, and start them after it",
    "-a": "`nodeagent plan` checks the whole document and touches nothing",
    "-d": "`nodeagent plan` has each step with its reason",
    "-l": "the configuration is called current",
    "--output-format": "-o has the format",
    "--output-file": "write `> FILE`",
    "checkpoint": "`nodeagent export > FILE` writes every instance with its place",
    "restore": "`nodeagent apply -f FILE` brings back what `nodeagent export` wrote",
    "generate-config": "all-balanced and all-PROFILE are known without a file that has them",
}
_MIG_PARTED |= {
    "--skip-reset": _MIG_PARTED["-s"],
    "--mode-only": _MIG_PARTED["-m"],
    "--hooks-file": _MIG_PARTED["-k"],
    "--valid-config": _MIG_PARTED["-a"],
    "--debug": _MIG_PARTED["-d"],
    "--config-label": _MIG_PARTED["-l"],
}


class Parser(argparse.ArgumentParser):
    """Reports bad usage as an error for the reader in place of a usage text.

    A parser is made, and `fill` adds its options, when it is needed: one command of many is
    parsed, and the parsers of all take a tenth of its time.
    """

    def __init__(self, *, fill: Callable[[Parser], None], **details: Any) -> None:
        self._details = details
        self._fill: Callable[[Parser], None] | None = fill

    def fill(self) -> None:
        """Make the parser with its options, once."""
        fill, self._fill = self._fill, None
        if fill is not None:
            super().__init__(allow_abbrev=False, **self._details)
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with the nearest of the choices in the remedy."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            remedy = _meant(str(value), map(str, action.choices or ()), self.prog)
            raise UsageError(str(error), remedy=remedy) from None


def parse(argv: list[str] | None) -> Options:
    """Read the command line; raises UsageError, or SystemExit after --help and --version."""
    options = Options()
    _, unknown = build_parser().parse_known_args(argv, namespace=options)
    if unknown:
        raise _unrecognized(unknown, options)
    subcommands = COMMANDS[options.command].subcommands()
    if subcommands and options.subcommand is None:
        raise UsageError(
            f"{options.command} needs one of: {', '.join(subcommands)}",
            remedy=f"see nodeagent {options.command} --help",
        )
    return options


def _unrecognized(unknown: list[str], options: Options) -> UsageError:
    """With the nearest of the command's options."""
    command, words = COMMANDS[options.command], ["nodeagent", options.command]
    subcommands = command.subcommands()
    if subcommands and options.subcommand is not None:
        command, words = subcommands[options.subcommand], [*words, options.subcommand]
    known = (*GLOBAL_OPTIONS, *command.options, *command.one_of)
    spellings = (name for names, _ in known for name in names if name.startswith("--"))
    remedy = _meant(unknown[0].partition("=")[0], spellings, " ".join(words))
    return UsageError(f"unrecognized arguments: {' '.join(unknown)}", remedy=remedy)


def _meant(word: str, known: Iterable[str], program: str) -> str:
    """What was probably meant, and where to read more."""
    from nodeagent.text import did_you_mean

    here = _MIG_PARTED.get(word)
    meant = f"{here};" if here else did_you_mean(word, known, cutoff=0.7)
    return f"{meant} see {program} --help".lstrip()


def build_parser() -> Parser:
    """The whole command line."""
    return Parser(
        prog="nodeagent",
        description="Partitions the NVIDIA GPUs of this node.",
        epilog=f"exit codes: {EXIT_CODES}",
        fill=_fill,
    )


def _fill(parser: Parser) -> None:
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    _add_global_options(parser, top=True)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_commands(commands, COMMANDS, epilog=f"exit codes: {EXIT_CODES}")


def _add_commands(
    parsers: argparse._SubParsersAction[Parser],
    commands: Mapping[str, Command],
    *,
    epilog: str | None = None,
) -> None:
    for name, command in commands.items():
        summary = command.summary
        sentence = summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else ".")
        fill = partial(_fill_command, command)
        parsers.add_parser(name, help=summary, description=sentence, epilog=epilog, fill=fill)


def _fill_command(command: Command, parser: Parser) -> None:
    _add_global_options(parser, top=False)
    if command.one_of:
        group = parser.add_mutually_exclusive_group(required=True)
        for names, details in command.one_of:
            group.add_argument(*names, **details)
    for names, details in command.options:
        parser.add_argument(*names, **details)
    if subcommands := command.subcommands():
        _add_commands(parser.add_subparsers(dest="subcommand", metavar="WHAT"), subcommands)


def _add_global_options(parser: Parser, *, top: bool) -> None:
    """Accepted before and after the command; only the topmost parser knows the defaults, so that
    what was said before a command is not forgotten after it.
    """
    group = parser.add_argument_group("options of every command")
    for names, details in GLOBAL_OPTIONS:
        group.add_argument(
            *names, **(details if top else {**details, "default": argparse.SUPPRESS})
        )
