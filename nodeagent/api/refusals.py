"""Requests and connections that were refused: counted each, logged seldom."""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum

import structlog

from nodeagent.rate_limit import RateLimit

log = structlog.get_logger(__name__)

_BETWEEN_LINES = 10.0  # seconds, for one reason on one listener


class Reason(StrEnum):
    """Why a request or a connection was refused."""

    MALFORMED = "malformed"  # no HTTP, or beyond the limits of a head
    SLOW = "slow"  # not sent, or its answer not taken, in time
    CONNECTIONS = "connections"  # ended to make way for another, or no room
    HANDSHAKE = "handshake"  # TLS was not agreed on
    HOST = "host"  # the Host header names another host
    PEER = "peer"  # a user whom the Unix socket is not for
    PASSWORD = "password"  # noqa: S105  the reason's name; a wrong one was given
    BUSY = "busy"  # more at once than the agent does


class Refusals:
    """The count by listener and reason; each reason is logged once in ten seconds at most.

    What a client sent is never logged: it may hold a password, and it has no end.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._lines = RateLimit(_BETWEEN_LINES)

    def add(self, listener: str, reason: Reason, *, peer: str, error: str = "") -> None:
        """Count one. `error` says more in words of ours."""
        self.counts[listener, reason.value] += 1
        count = self._lines.due((listener, reason), time.monotonic())
        if count:
            facts = {"error": error} if error else {}
            log.warning(
                "a client was refused",
                listener=listener,
                reason=reason.value,
                peer=peer,
                count=count,
                **facts,
            )
