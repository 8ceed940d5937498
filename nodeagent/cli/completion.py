"""`nodeagent completion`: the script by which a shell completes the command line.

shtab makes it of the parser; it starts no program when it completes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import shtab

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.cli.parser import Parser, build_parser
from nodeagent.runbook import runbook
from nodeagent.simulation.boards import board_names


def run_completion(options: Namespace, output: Output) -> ExitCode:
    """Print it, whatever the format: a shell reads it."""
    parser = build_parser()
    for each in parser.with_subcommands():
        _describe_values(each)
    output.text(shtab.complete(parser, shell=options.shell))
    return ExitCode.DONE


def _describe_values(parser: Parser) -> None:
    """Say what shells complete where argparse takes more than that: files, boards, codes."""
    values: dict[str, Sequence[str]] = {
        "simulate": board_names(),
        # In one word each, as `explain` takes them, too.
        "codes": [entry.code.replace("'", "").replace(" ", "-") for entry in runbook().entries],
    }
    for action in parser.actions:
        if action.dest in values:
            action.choices = list(dict.fromkeys(values[action.dest]))
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab looks for it
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
