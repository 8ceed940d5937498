"""The command line: commands, options and their one-line descriptions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from nodeagent import __version__
from nodeagent.cli.options import Options
from nodeagent.cli.values import positive, seconds
from nodeagent.errors import UsageError
from nodeagent.settings.sources import choices

EXIT_CODES = (
    "0 done, matches, or nothing to do; 1 does not match, cannot be satisfied on this "
    "card, or failed; 2 bad usage or bad document; 3 blocked by something in use. When GPUs end "
    "differently, 2 comes before 1, and 1 before 3."
)


class Option(NamedTuple):
    """An option or argument: its spellings, and what argparse takes beside them."""

    names: tuple[str, ...]
    details: Mapping[str, Any]


class Command(NamedTuple):
    """A command: what it does in a line, and what it takes beside the options of every command."""

    summary: str
    options: tuple[Option, ...] = ()


def _option(*names: str, **details: Any) -> Option:
    return Option(names, details)


def _path(name: str, meaning: str, *, metavar: str = "FILE") -> Option:
    return _option(name, metavar=metavar, type=Path, help=meaning)


def _choice(name: str, words: Sequence[str], meaning: str, **details: Any) -> Option:
    return _option(name, choices=words, help=meaning, **details)


def _flag(name: str, meaning: str) -> Option:
    return _option(name, action="store_true", help=meaning)


def _seconds(name: str, meaning: str, default: float | None = None) -> Option:
    return _option(name, metavar="SECONDS", type=seconds, default=default, help=meaning)


def _configuration(default: str) -> Option:
    meaning = f"which configuration of an nvidia-mig-parted file (default: {default})"
    return _option("-c", "--configuration", "--selected-config", metavar="NAME", help=meaning)


_FILE = _option(
    "-f",
    "--file",
    "--config-file",
    metavar="FILE",
    help="the plan, or a file of nvidia-mig-parted; - reads standard input "
    "(default: $MIG_PARTED_CONFIG_FILE)",
)
_DOCUMENT = (_FILE, _configuration("$MIG_PARTED_SELECTED_CONFIG, else the only one"))
_RESET = _choice(
    "--reset",
    choices("reset"),
    "whether a GPU proven idle may be reset, where a mode change needs it (default: never)",
)
_PARALLEL = _option(
    "--parallel",
    metavar="N",
    type=positive,
    help="how many GPUs are changed side by side (default: 8)",
)
_SETTINGS = _path("--settings", "the agent's settings")
_PLAN = _path("--plan", "the plan file to follow")
_PLAN_NAME = _configuration("the only one")
_LISTEN = _option("--listen", metavar="ADDRESS", help="the API's address (default: 127.0.0.1:9470)")
_RUN_DIR = _path(
    "--run-dir", "where sockets and the lock lie (default: /run/nodeagent)", metavar="DIR"
)
_STATE_DIR = _path(
    "--state-dir",
    "where what must survive a restart lie (default: /var/lib/nodeagent)",
    metavar="DIR",
)
_DIRECTORIES = (_RUN_DIR, _STATE_DIR)
_CLUSTER = (
    _choice(
        "--source",
        choices("plan.source"),
        "where the plan comes from (auto: the Node's annotation in a cluster, else the file)",
    ),
    _path("--kubeconfig", "the cluster that the node belongs to"),
    _option("--node-name", metavar="NAME", help="how this node is called"),
)
_RECONCILING = (
    _choice(
        "--drift",
        choices("drift"),
        "what to do about changes that others made (default: mend)",
    ),
    _RESET,
    _PARALLEL,
    _seconds("--resync", "how often to look again when nothing wakes the agent (default: 60)"),
)
_SHELL = _choice("shell", ("bash", "zsh", "fish"), "for which shell")
_ARCHIVE = _path("archive", "the archive to write (tar.gz); it must not exist")
_WAIT = _seconds("--wait", "wait so long for those who use what must go (default: 0)", 0.0)
_FORMAT = _choice(
    "--format",
    ("plan", "mig-parted"),
    "which kind of document (default: plan)",
    dest="export_format",
    default="plan",
)
_SUBJECT = _choice(
    "subject", ("plan", "settings"), "of what (default: plan)", nargs="?", default="plan"
)
_CODES = _option(
    "codes",
    nargs="*",
    metavar="CODE",
    help="such as InUse, ecc, Blocked or XID 79; capitals do not count (default: list all)",
)

COMMANDS = {
    "run": Command(
        "the agent: keep the node as the plan says",
        (_SETTINGS, _PLAN, _PLAN_NAME, *_CLUSTER, _LISTEN, *_DIRECTORIES, *_RECONCILING),
    ),
    "plan": Command(
        "show the steps that would be taken, and why; touches nothing",
        (*_DOCUMENT, _RESET, _SETTINGS, *_DIRECTORIES),
    ),
    "apply": Command(
        "take the steps once, without an agent",
        (*_DOCUMENT, _RESET, _PARALLEL, _WAIT, _SETTINGS, *_DIRECTORIES),
    ),
    "assert": Command("is the node as the document says?", (*_DOCUMENT, _SETTINGS, *_DIRECTORIES)),
    "export": Command(
        "write the node as it is, as a document", (_FORMAT, _SETTINGS, *_DIRECTORIES)
    ),
    "profiles": Command("what each GPU offers and how many more fit now", (_SETTINGS,)),
    "status": Command(
        "the running agent's picture of the node",
        (
            _flag("--watch", "follow the changes"),
            _option("--gpu", dest="one_gpu", metavar="GPU", help="one in full: an index or a UUID"),
            *(_SETTINGS, _LISTEN, _RUN_DIR),
        ),
    ),
    "mps": Command("the MPS daemons of the running agent: show, restart, drain them"),
    "claims": Command(
        "the resource claims that the running agent serves: state, pods, devices, what is wrong",
        (_SETTINGS, _LISTEN, _RUN_DIR),
    ),
    "check": Command(
        "preflight: what would keep the agent from working, with a remedy for each",
        (_SETTINGS, _PLAN, *_CLUSTER, *_DIRECTORIES),
    ),
    "explain": Command(
        "what a code, check, phase, alert or XID means, and the commands that mend it", (_CODES,)
    ),
    "schema": Command("JSON Schema of the plan or of the settings", (_SUBJECT,)),
    "bundle": Command(
        "one archive with what a maintainer would ask for; nothing secret in it",
        (_ARCHIVE, _SETTINGS, _LISTEN, *_DIRECTORIES),
    ),
    "completion": Command("the script by which a shell completes this command line", (_SHELL,)),
    "demo": Command(
        "a guided tour on a simulated node, in seconds; shows each command as it can be typed"
    ),
    "simulate": Command(
        "boards that can be simulated; processes, MPS clients, faults, reboots of a node"
    ),
}

_DEVICE_SPELLINGS = "a GPU by index or UUID, or a MIG device by UUID or by GPU:SLICE (0:4)"
_DEVICE = _option("device", metavar="DEVICE", help=_DEVICE_SPELLINGS)
_ANY_DEVICE = _option(
    "device", nargs="?", default="", metavar="DEVICE", help=f"{_DEVICE_SPELLINGS} (default: all)"
)
_LOSS = "even if clients lose their work"

MPS_COMMANDS = {
    "status": Command(
        "the daemons: state, user, restarts, shares", (_ANY_DEVICE, _SETTINGS, _LISTEN, _RUN_DIR)
    ),
    "clients": Command(
        "who uses a device through MPS, with limits and use",
        (_ANY_DEVICE, _SETTINGS, _LISTEN, _RUN_DIR),
    ),
    "restart": Command(
        "end a device's daemon and start it anew",
        (_DEVICE, _flag("--force", _LOSS), _SETTINGS, _RUN_DIR),
    ),
    "drain": Command(
        "let no new clients in, wait for those that are there, then end the daemon",
        (
            _DEVICE,
            _seconds("--timeout", "wait so long for the clients (default: however long it takes)"),
            _flag("--force", f"at the end of the time, {_LOSS}"),
            _SETTINGS,
            _RUN_DIR,
        ),
    ),
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
            from nodeagent.text import did_you_mean

            meant = did_you_mean(str(value), map(str, action.choices or ()))
            remedy = f"{meant} see {self.prog} --help".lstrip()
            raise UsageError(str(error), remedy=remedy) from None


def parse(argv: list[str] | None) -> Options:
    """Read the command line; raises UsageError, or SystemExit after --help and --version."""
    options = build_parser().parse_args(argv, namespace=Options())
    if options.command == "simulate" and options.simulation is None:
        from nodeagent.cli.simulate.parser import SIMULATIONS

        raise _one_of("simulate", SIMULATIONS)
    if options.command == "mps" and options.mps is None:
        raise _one_of("mps", MPS_COMMANDS)
    return options


def _one_of(command: str, names: Iterable[str]) -> UsageError:
    return UsageError(
        f"{command} needs one of: {', '.join(names)}", remedy=f"see nodeagent {command} --help"
    )


def build_parser() -> Parser:
    """The whole command line."""
    return Parser(
        prog="nodeagent",
        description="Owns how the NVIDIA GPUs of this node are split.",
        epilog=f"exit codes: {EXIT_CODES}",
        fill=_fill,
    )


def _fill(parser: Parser) -> None:
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    _add_global_options(parser, top=True)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        fill = _FILL.get(name, partial(_add_options, options=command.options))
        _add_command(commands, name, command.summary, fill, epilog=f"exit codes: {EXIT_CODES}")


def _add_command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    fill: Callable[[Parser], None],
    *,
    epilog: str | None = None,
) -> None:
    sentence = summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else ".")

    def fill_all(parser: Parser) -> None:
        _add_global_options(parser, top=False)
        fill(parser)

    commands.add_parser(name, help=summary, description=sentence, epilog=epilog, fill=fill_all)


def _add_options(parser: Parser, options: Iterable[Option]) -> None:
    for names, details in options:
        parser.add_argument(*names, **details)


def _fill_mps(parser: Parser) -> None:
    kinds = parser.add_subparsers(dest="mps", metavar="WHAT")
    for name, command in MPS_COMMANDS.items():
        fill = partial(_add_options, options=command.options)
        _add_command(kinds, name, command.summary, fill)


def _fill_simulate(parser: Parser) -> None:
    from nodeagent.cli.simulate.parser import SIMULATIONS, add_simulation_options

    kinds = parser.add_subparsers(dest="simulation", metavar="WHAT")
    for name, summary in SIMULATIONS.items():
        _add_command(kinds, name, summary, partial(add_simulation_options, name))


_FILL = {"mps": _fill_mps, "simulate": _fill_simulate}  # those with commands of their own

_GLOBAL_OPTIONS = (
    _option(
        "--simulate",
        metavar="BOARDS",
        help="simulated GPUs in place of the driver, such as h100-80gb:8 or a100-40gb:2,t4:1",
    ),
    _path(
        "--state", "keep the simulated node in FILE, between commands and beside a running agent"
    ),
    _option(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        default="text",
        help="format of the answer (default: text)",
    ),
    _flag("--no-color", "no colours"),
)


def _add_global_options(parser: Parser, *, top: bool) -> None:
    """Accepted before and after the command; only the topmost parser knows the defaults, so that
    what was said before a command is not forgotten after it.
    """
    group = parser.add_argument_group("options of every command")
    for names, details in _GLOBAL_OPTIONS:
        group.add_argument(
            *names, **(details if top else {**details, "default": argparse.SUPPRESS})
        )
