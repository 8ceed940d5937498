"""The command line: commands, options and their one-line descriptions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from nodeagent import __version__
from nodeagent.cli.mps_parser import MPS_COMMANDS, add_mps_options
from nodeagent.cli.options import Options
from nodeagent.cli.simulate.parser import SIMULATIONS, add_simulation_options
from nodeagent.cli.values import positive, seconds
from nodeagent.errors import UsageError

COMMANDS = {
    "run": "the agent: keep the node as the plan says",
    "plan": "show the steps that would be taken, and why; touches nothing",
    "apply": "take the steps once, without an agent",
    "assert": "is the node as the document says?",
    "export": "write the node as it is, as a document",
    "profiles": "what each GPU offers and how many more fit now",
    "status": "the running agent's picture of the node",
    "mps": "the MPS daemons of the running agent: show, restart, drain them",
    "check": "preflight: what would keep the agent from working, with a remedy for each",
    "schema": "JSON Schema of the plan or of the settings",
    "simulate": "boards that can be simulated; processes, MPS clients, faults, reboots of a node",
}

_EPILOG = (
    "exit codes: 0 done, matches, or nothing to do; 1 does not match, cannot be satisfied on this "
    "card, or failed; 2 bad usage or bad document; 3 blocked by something in use. When GPUs end "
    "differently, 2 comes before 1, and 1 before 3."
)


class Parser(argparse.ArgumentParser):
    """Reports bad usage as an error for the reader in place of a usage text."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


def parse(argv: list[str] | None) -> Options:
    """Read the command line; raises UsageError, or SystemExit after --help and --version."""
    options = build_parser().parse_args(argv, namespace=Options())
    if options.command == "simulate" and options.simulation is None:
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
    parser = Parser(
        prog="nodeagent",
        description="Owns how the NVIDIA GPUs of this node are split.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    _add_global_options(parser, top=True)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=_sentence(summary), epilog=_EPILOG, allow_abbrev=False
        )
        _add_global_options(command, top=False)
        _ADD_OPTIONS[name](command)
    return parser


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else ".")


def _add_global_options(parser: argparse.ArgumentParser, *, top: bool) -> None:
    """Accepted before and after the command; only the topmost parser knows the defaults, so that
    what was said before a command is not forgotten after it.
    """

    def default(value: object) -> object:
        return value if top else argparse.SUPPRESS

    group = parser.add_argument_group("options of every command")
    group.add_argument(
        "--simulate",
        metavar="BOARDS",
        default=default(None),
        help="simulated GPUs in place of the driver, such as h100-80gb:8 or a100-40gb:2,t4:1",
    )
    group.add_argument(
        "--state",
        metavar="FILE",
        type=Path,
        default=default(None),
        help="keep the simulated node in FILE, between commands and beside a running agent",
    )
    group.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        default=default("text"),
        help="format of the answer (default: text)",
    )
    group.add_argument(
        "--no-color", action="store_true", default=default(value=False), help="no colours"
    )


def _add_document_options(parser: argparse.ArgumentParser) -> None:
    _add_file_option(parser)
    _add_configuration_option(parser, "$MIG_PARTED_SELECTED_CONFIG, else the only one")


def _add_file_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--file",
        "--config-file",
        metavar="FILE",
        help="the plan, or a file of nvidia-mig-parted; - reads standard input "
        "(default: $MIG_PARTED_CONFIG_FILE)",
    )


def _add_configuration_option(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "-c",
        "--configuration",
        "--selected-config",
        metavar="NAME",
        help=f"which configuration of an nvidia-mig-parted file (default: {default})",
    )


def _add_reset_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reset",
        choices=("never", "whenIdle"),
        help="whether a GPU proven idle may be reset, where a mode change needs it "
        "(default: never)",
    )


def _add_parallel_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parallel",
        metavar="N",
        type=positive,
        help="how many GPUs are changed side by side (default: 8)",
    )


def _plan(parser: argparse.ArgumentParser) -> None:
    _add_document_options(parser)
    _add_reset_option(parser)
    _add_agent_options(parser)


def _apply(parser: argparse.ArgumentParser) -> None:
    _add_document_options(parser)
    _add_reset_option(parser)
    _add_parallel_option(parser)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=0.0,
        help="wait so long for those who use what must go (default: 0)",
    )
    _add_agent_options(parser)


def _assert(parser: argparse.ArgumentParser) -> None:
    _add_document_options(parser)
    _add_agent_options(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        dest="export_format",
        choices=("plan", "mig-parted"),
        default="plan",
        help="which kind of document (default: plan)",
    )
    _add_agent_options(parser)


def _profiles(parser: argparse.ArgumentParser) -> None:
    _add_settings_option(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="follow the changes")
    _add_settings_option(parser)
    _add_listen_option(parser)
    _add_directory_options(parser, "run")


def _mps(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="mps", metavar="WHAT")
    for name, summary in MPS_COMMANDS.items():
        kind = kinds.add_parser(
            name, help=summary, description=_sentence(summary), allow_abbrev=False
        )
        _add_global_options(kind, top=False)
        add_mps_options(name, kind)
        _add_settings_option(kind)
        if name in ("status", "clients"):
            _add_listen_option(kind)
        _add_directory_options(kind, "run")


def _check(parser: argparse.ArgumentParser) -> None:
    _add_settings_option(parser)
    _add_plan_option(parser)
    _add_cluster_options(parser)
    _add_directory_options(parser, "run", "state")


def _schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        nargs="?",
        choices=("plan", "settings"),
        default="plan",
        help="of what (default: plan)",
    )


def _run(parser: argparse.ArgumentParser) -> None:
    _add_settings_option(parser)
    _add_plan_option(parser)
    _add_configuration_option(parser, "the only one")
    _add_cluster_options(parser)
    _add_listen_option(parser)
    _add_directory_options(parser, "run", "state")
    parser.add_argument(
        "--drift",
        choices=("mend", "report"),
        help="what to do about changes that others made (default: mend)",
    )
    _add_reset_option(parser)
    _add_parallel_option(parser)
    parser.add_argument(
        "--resync",
        metavar="SECONDS",
        type=seconds,
        help="how often to look again when nothing wakes the agent (default: 60)",
    )


def _simulate(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="simulation", metavar="WHAT")
    for name, summary in SIMULATIONS.items():
        kind = kinds.add_parser(
            name, help=summary, description=_sentence(summary), allow_abbrev=False
        )
        _add_global_options(kind, top=False)
        add_simulation_options(name, kind)


def _add_settings_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", metavar="FILE", type=Path, help="the agent's settings")


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Where an agent on this node has its things, for commands that look for them."""
    _add_settings_option(parser)
    _add_directory_options(parser, "run", "state")


def _add_plan_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", metavar="FILE", type=Path, help="the plan file to follow")


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        choices=("auto", "file", "annotation", "nos", "mig-config"),
        help="where the plan comes from (auto: the Node's annotation in a cluster, else the file)",
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", type=Path, help="the cluster that the node belongs to"
    )
    parser.add_argument("--node-name", metavar="NAME", help="how this node is called")


def _add_listen_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="the API's address (default: 127.0.0.1:9470)"
    )


def _add_directory_options(parser: argparse.ArgumentParser, *names: str) -> None:
    defaults = {"run": "/run/nodeagent", "state": "/var/lib/nodeagent"}
    meanings = {"run": "sockets and the lock", "state": "what must survive a restart"}
    for name in names:
        parser.add_argument(
            f"--{name}-dir",
            metavar="DIR",
            type=Path,
            help=f"where {meanings[name]} lie (default: {defaults[name]})",
        )


_ADD_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "run": _run,
    "plan": _plan,
    "apply": _apply,
    "assert": _assert,
    "export": _export,
    "profiles": _profiles,
    "status": _status,
    "mps": _mps,
    "check": _check,
    "schema": _schema,
    "simulate": _simulate,
}
