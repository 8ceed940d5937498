"""`nodeagent explain`, `schema`, `completion`, `help` and `version`: the program's own words."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from nodeagent import __version__
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.commands import COMMANDS
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, formatted
from nodeagent.cli.parser import Parser, build_parser, parse
from nodeagent.cluster.client.presence import runs_as
from nodeagent.documents.plan import plan_schema
from nodeagent.errors import UsageError
from nodeagent.runbook import runbook
from nodeagent.settings.sources import settings_schema
from nodeagent.terminal.explain_page import entries_page, list_page
from nodeagent.views.shapes import RunsAs, as_json


def run_explain(options: Namespace, output: Output) -> ExitCode:
    """Print the entries of the codes; without any, a line for each entry there is."""
    entries = runbook().find(options.codes) if options.codes else runbook().entries
    if output.is_text:
        width, _ = output.room
        if options.codes:
            output.page(entries_page(entries, width, _runs_as(options)))
        else:
            output.page(list_page(entries, width))
    output.document({"entries": [as_json(entry) for entry in entries]})
    return ExitCode.DONE


def _runs_as(options: Namespace) -> RunsAs:
    """How the agent runs; bad settings, which may be what is asked about, say without a cluster."""
    try:
        return runs_as(command_settings(options).kubernetes)
    except UsageError:
        return ""


def run_schema(options: Namespace, output: Output) -> ExitCode:
    """Print it as JSON, unless YAML was asked for."""
    schema = settings_schema if options.subject == "settings" else plan_schema
    output.text(formatted(schema(), "yaml" if output.format == "yaml" else "json"))
    return ExitCode.DONE


def run_help(options: Namespace, _: Output) -> ExitCode:
    """Print the help of the program, or of the command that the words name."""
    with suppress(SystemExit):
        parse([*options.words, "--help"])
    return ExitCode.DONE


def run_version(_: Namespace, output: Output) -> ExitCode:
    """Print the version."""
    output.sentence(f"nodeagent {__version__}")
    output.document({"version": __version__})
    return ExitCode.DONE


def run_completion(options: Namespace, output: Output) -> ExitCode:
    """Print the script by which a shell completes the command line, whatever the format.

    shtab makes it of the parser; it starts no program when it completes.
    """
    import shtab

    parser = build_parser()
    for each in parser.with_subcommands():
        _describe_values(each)
    output.text(shtab.complete(parser, shell=options.shell))
    return ExitCode.DONE


def _describe_values(parser: Parser) -> None:
    """Say what shells complete where argparse takes more than that: files, boards, codes."""
    import shtab

    from nodeagent.simulation.boards import board_names

    values: dict[str, Sequence[str]] = {
        "simulate": board_names(),
        "words": tuple(COMMANDS),
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
