"""Preflight: what the agent needs to judge the GPUs' health."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.errors import UsageError
from nodeagent.settings import HealthSettings


def health_findings(settings: HealthSettings, *, simulated: bool) -> Iterator[Finding]:
    """The table of XIDs, and whether the kernel log may be read."""
    if settings.xids is not None:
        yield _table_finding(settings)
    if not simulated or "kernel_log" in settings.given:
        yield _log_finding(settings)


def _table_finding(settings: HealthSettings) -> Finding:
    from nodeagent.documents.xids import xid_table

    try:
        xid_table(settings.xids)
    except UsageError as wrong:
        return error("table of XIDs", wrong.message, wrong.remedy)
    return ok("table of XIDs", f"{settings.xids} is accepted")


def _log_finding(settings: HealthSettings) -> Finding:
    path = settings.kernel_log
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as failed:
        return warning(
            "kernel log",
            f"{path} cannot be opened: {failed.strerror}; XIDs are then known from NVML alone",
            "run as root with CAP_SYSLOG, and in a pod with the device",
        )
    return ok("kernel log", f"{path} can be read")
