"""`nodeagent explain`: what a code, check, phase, alert or XID means, and what mends it."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.runbook.entries import Entry
from nodeagent.runbook.lookup import runbook


def run(options: Namespace, output: Output) -> ExitCode:
    """Print the entries of the codes; without any, a line for each entry there is."""
    entries = runbook().find(options.codes) if options.codes else runbook().entries
    if output.is_text:
        from nodeagent.terminal.explain_page import entries_page, list_page

        page = entries_page if options.codes else list_page
        output.page(page(entries, output.width))
    output.document({"entries": [_json(entry) for entry in entries]})
    return ExitCode.DONE


def _json(entry: Entry) -> dict[str, object]:
    return {
        "code": entry.code,
        "kind": entry.kind.value,
        "means": entry.means,
        "look": list(entry.look),
        "mend": list(entry.mend),
        "see": list(entry.see),
    }
