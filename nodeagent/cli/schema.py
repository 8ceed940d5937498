"""`nodeagent schema`: what a plan or a settings file may hold, as JSON Schema."""

from __future__ import annotations

from typing import Any

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output, formatted


def run(options: Options, output: Output) -> ExitCode:
    """Print it as JSON, unless YAML was asked for."""
    schema = _settings_schema() if options.subject == "settings" else _plan_schema()
    output.text(formatted(schema, "yaml" if output.format == "yaml" else "json"))
    return ExitCode.DONE


def _plan_schema() -> dict[str, Any]:
    from nodeagent.documents.schema import plan_schema

    return plan_schema()


def _settings_schema() -> dict[str, Any]:
    from nodeagent.settings import Settings

    return Settings.model_json_schema()
