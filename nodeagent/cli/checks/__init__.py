"""What `nodeagent check` looks at, one module a subject, and what it can find."""

from __future__ import annotations

from typing import NamedTuple


class PreflightFinding(NamedTuple):
    """One thing looked at: `check` names it, `message` says what was found.

    `level` is `ok`, `warning` (something will not work, or may not) or `error` (the agent cannot
    work like this).
    """

    check: str
    level: str
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> PreflightFinding:
    """All is well."""
    return PreflightFinding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> PreflightFinding:
    """Something will not work, or may not."""
    return PreflightFinding(check, "warning", message, remedy)


def error(check: str, message: str, remedy: str) -> PreflightFinding:
    """The agent cannot work like this."""
    return PreflightFinding(check, "error", message, remedy)
