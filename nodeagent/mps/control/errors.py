"""Why a control daemon could not be asked."""

from __future__ import annotations

from nodeagent.errors import NodeagentError


class ControlError(NodeagentError):
    """The daemon could not be asked."""


class DaemonDead(ControlError):
    """There is no daemon at the pipe directory; perhaps its files are still there."""


class DaemonBusy(ControlError):
    """Another front-end had the daemon's only connection until the deadline."""


class DaemonSilent(ControlError):
    """The daemon is there and took the connection, but said nothing within the deadline."""


class FrontEndFailed(ControlError):
    """The front-end program cannot be run, or is not let in, or broke off."""
