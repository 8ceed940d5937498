"""`nodeagent schema`: what a plan or a settings file may hold, as JSON Schema."""

from __future__ import annotations

from argparse import Namespace

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, formatted


def run(options: Namespace, output: Output) -> ExitCode:
    """Print it as JSON, unless YAML was asked for."""
    if options.subject == "settings":
        from nodeagent.settings.sources import settings_schema as schema
    else:
        from nodeagent.documents.plan import plan_schema as schema
    output.text(formatted(schema(), "yaml" if output.format == "yaml" else "json"))
    return ExitCode.DONE
