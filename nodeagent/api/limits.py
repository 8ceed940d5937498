"""What clients may take of the agent, and how many were refused: counted each, logged seldom."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import structlog

from nodeagent.rate_limit import RateLimit


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one listener; no listener shares them with another. Times are in seconds.

    The connections of one peer exceed what followers, scrapes and previews can hold together. So
    there is always one that waits for its client and can be ended for a newcomer.
    """

    connections: int = 256  # each takes a descriptor, which the work with the GPUs needs too
    connections_of_peer: int = 224
    request: float = 10.0  # for a client to send a whole request, head and body
    idle: float = 60.0  # between two requests, and for a client to take an answer
    handshake: float = 5.0  # of TLS
    followers: int = 64  # of the events
    follower_write: float = 30.0  # for a follower to take one event
    previews: int = 8  # that wait or compute
    scrapes: int = 16  # that are being sent; each holds one text that may be outdated by then
    scrape: float = 15.0  # for a client to take the whole text
    scrape_undisturbed: float = 1.0  # of them before it has to make way for another
    password: float = 10.0  # for a password to be checked
    refusal_hold: float = 60.0  # for a refusal to be answered, while many guess


TCP_LIMITS = Limits()
# For root's commands. Nothing that happens on other listeners takes any of it.
SOCKET_LIMITS = Limits(connections=64, connections_of_peer=64, followers=16, previews=4, scrapes=4)


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
