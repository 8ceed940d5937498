"""`nodeagent assert`: whether the node is as the document says."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli import event_loop, exit_codes
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.cli.plan import is_rejection, planned, read_or_report, report
from nodeagent.plan.plan import Verdict


def run(options: Namespace, output: Output) -> ExitCode:
    """Say whether nothing would have to be done: exit code 0 or 1, or 2 for a bad document."""
    document = read_or_report(options, output)
    settings = command_settings(options)
    found = event_loop.run(planned(options, settings, document))
    if is_rejection(found) or not output.is_text:
        report(found, document, output, settings.policy)
    else:
        from nodeagent.terminal.assert_page import assert_page

        output.page(assert_page(found))
    if exit_codes.of_plan(found) is ExitCode.BAD_DOCUMENT:
        return ExitCode.BAD_DOCUMENT
    unready = any(gpu.problems for gpu in found.gpus)
    return ExitCode.DONE if found.verdict is Verdict.IN_SYNC and not unready else ExitCode.FAILED
