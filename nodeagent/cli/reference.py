"""`nodeagent explain` and `schema`: what a word in an answer or a document means."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, formatted
from nodeagent.documents.plan import plan_schema
from nodeagent.runbook import Entry, runbook
from nodeagent.settings.sources import settings_schema
from nodeagent.terminal.explain_page import entries_page, list_page


def run_explain(options: Namespace, output: Output) -> ExitCode:
    """Print the entries of the codes; without any, a line for each entry there is."""
    entries = runbook().find(options.codes) if options.codes else runbook().entries
    if output.is_text:
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


def run_schema(options: Namespace, output: Output) -> ExitCode:
    """Print it as JSON, unless YAML was asked for."""
    schema = settings_schema if options.subject == "settings" else plan_schema
    output.text(formatted(schema(), "yaml" if output.format == "yaml" else "json"))
    return ExitCode.DONE
