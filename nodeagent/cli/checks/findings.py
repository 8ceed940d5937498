"""What a preflight check can find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """An ERROR keeps the agent from working, a WARNING from doing everything."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `check` names it, `message` says what was found."""

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """Something will not work, or may not."""
    return Finding(check, Level.WARNING, message, remedy)


def error(check: str, message: str, remedy: str) -> Finding:
    """The agent cannot work like this."""
    return Finding(check, Level.ERROR, message, remedy)
