"""The errors that may cross a package border, each worded for the person who will read it.

Foreign exceptions (NVML, operating system, msgspec) are translated into these where they
enter; nothing above that border ever sees the foreign type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from nodeagent.catalogue import filled, section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.plan.problems import Problem


class NodeagentError(Exception):
    """Something went wrong; `message` says what was found, `remedy` what would be right."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @classmethod
    def of(cls, case: str, *, also: Mapping[str, Any] = {}, **facts: object) -> Self:
        """The error in the words of the catalogue; `also` has what else the class takes."""
        words = section("error")[case]
        return cls(filled(words["message"], facts), remedy=filled(words["remedy"], facts), **also)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class UsageError(NodeagentError):
    """The command line or a setting is wrong (exit code 2)."""


class DocumentError(NodeagentError):
    """A document from outside is refused whole; every fault found is in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(f"{first.path}: {first.message}" if first.path else first.message)
        self.remedy = first.remedy
        self.problems = tuple(problems)


class UnknownDevice(UsageError):
    """The node has no such device, or not what is asked for on it."""


class Transient(NodeagentError):
    """What passes by itself as a rule: it is worth waiting for a while."""


class StillInUse(Transient):
    """What would have to go is in use; the message names its users."""


class DrainTimedOut(StillInUse):
    """Clients were left when the time to drain was over; the message names them."""


class DriverError(NodeagentError):
    """The NVIDIA driver refused or failed a call.

    `code` is the NVML return code; None when the failure is not NVML's own.
    """

    def __init__(self, message: str, *, code: int | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class DriverUnavailable(DriverError):
    """NVML cannot be used at all: library missing, driver not loaded, versions differ."""


class GpuInUse(DriverError):
    """The driver says that something still uses what the call would change (IN_USE)."""


class GpuLost(DriverError):
    """The GPU fell off the bus or needs a reset before it answers again."""


class DeadlineExceeded(DriverError):
    """A driver call did not return in time; it may still be running in its thread."""


def error_sentence(error: BaseException) -> str:
    """An error in one sentence; one that is not ours is a fault in the agent."""
    if isinstance(error, NodeagentError):
        return error.message
    return f"a fault in the agent itself: {type(error).__name__}: {error}"
