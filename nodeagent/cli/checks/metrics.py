"""Preflight: the files that say which metrics are exported, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.errors import NodeagentError
from nodeagent.settings import MetricsSettings


def metrics_findings(settings: MetricsSettings) -> Iterator[Finding]:
    """The file of counters, each of its lines, and the web-config file; those that are named."""
    if settings.counters is not None:
        yield from _counters_findings(settings.counters)
    if settings.web_config is not None:
        yield _web_config_finding(settings.web_config, listens=settings.listen is not None)


def _counters_findings(path: Path) -> Iterator[Finding]:
    from nodeagent.metrics.selection import read_selection
    from nodeagent.telemetry.counters_file import counters_text

    check = "file of counters"
    try:
        selection = read_selection(counters_text(path))
    except NodeagentError as wrong:
        yield error(check, wrong.message, wrong.remedy)
        return
    fields = len(selection.metrics) + len(selection.labels)
    yield ok(check, f"{path} has {fields} fields that can be exported")
    for found in selection.findings:
        yield warning(check, f"line {found.line}: {found.message}", found.remedy)


def _web_config_finding(path: Path, *, listens: bool) -> Finding:
    from nodeagent.api.web_config import read_web_config

    check = "web-config file"
    if not listens:
        return warning(
            check,
            "it has an effect only with metrics.listen, which is not set",
            "set metrics.listen",
        )
    try:
        config = read_web_config(path)
        if config.tls is not None:
            config.tls.context()
    except NodeagentError as wrong:
        return error(check, wrong.message, wrong.remedy)
    users = f"{len(config.users)} users" if config.users else "no passwords"
    return ok(check, f"{path}: {'TLS' if config.tls else 'no TLS'}, {users}")
