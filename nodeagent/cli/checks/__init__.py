"""What `nodeagent check` looks at, one module a subject, and what it can find."""

from typing import NamedTuple

from nodeagent.errors import NodeagentError
from nodeagent.plan.problems import Problem


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


def warning(check: str, found: NodeagentError | Problem, remedy: str = "") -> PreflightFinding:
    """Something will not work, or may not; `remedy` is for what has none of its own."""
    return PreflightFinding(check, "warning", found.message, found.remedy or remedy)


def error(check: str, found: NodeagentError | Problem, remedy: str = "") -> PreflightFinding:
    """The agent cannot work like this; `remedy` is for what has none of its own."""
    return PreflightFinding(check, "error", found.message, found.remedy or remedy)
