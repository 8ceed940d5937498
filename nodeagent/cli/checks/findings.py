"""What a preflight check can find."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing looked at: `check` names it, `message` says what was found.

    `level` is `ok`, `warning` (something will not work, or may not) or `error` (the agent cannot
    work like this).
    """

    check: str
    level: str
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """Something will not work, or may not."""
    return Finding(check, "warning", message, remedy)


def error(check: str, message: str, remedy: str) -> Finding:
    """The agent cannot work like this."""
    return Finding(check, "error", message, remedy)
