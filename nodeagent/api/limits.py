"""What clients may take of the agent: which connections a listener has, and which of them ends when
there is no room for another; how many clients were refused, counted each and logged seldom.

A connection that waits for its client (for a request, or for its answer to be taken) makes way: the
one that has waited longest, of the peer with most connections. A client that sends its request at
once is in that state for an instant, so that clients which hold connections keep it out of nothing.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Final

import structlog

from nodeagent.pacing import RateLimit
from nodeagent.structs import Struct, replace


class RequestLimits(Struct, frozen=True):
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
    passwords: int = 16  # in line to be checked, each from another address
    password_pause: float = 0.25  # after a wrong one, before the next is checked


TCP_LIMITS = RequestLimits()
# For root's commands. Nothing that happens on other listeners takes any of it.
SOCKET_LIMITS = RequestLimits(
    connections=64, connections_of_peer=64, followers=16, previews=4, scrapes=4
)


_OWN_FILES: Final = 128  # that the work with the GPUs may have open; at rest there are some 30
# With fewer open files than these there are fewer connections.
ALL_CONNECTIONS: Final = _OWN_FILES + 2 * (2 * TCP_LIMITS.connections + SOCKET_LIMITS.connections)


def limits_within(open_files: int) -> tuple[RequestLimits, RequestLimits]:
    """The limits of each of two TCP listeners, and of the Unix socket, for so many open files.

    As many connections again may be there for a moment, while they are refused.
    """
    part = min(max((open_files - _OWN_FILES) / (ALL_CONNECTIONS - _OWN_FILES), 0.03), 1)
    return _part(TCP_LIMITS, part), _part(SOCKET_LIMITS, part)


def _part(limits: RequestLimits, part: float) -> RequestLimits:
    numbers = ("connections", "connections_of_peer", "followers", "previews", "scrapes")
    return replace(limits, **{n: max(int(getattr(limits, n) * part), 1) for n in numbers})


log = structlog.get_logger(__name__)

_LOG_INTERVAL = 10.0  # seconds, for one reason on one listener


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
        self._lines = RateLimit(_LOG_INTERVAL)

    def begin(self, listener: str) -> None:
        """Count from 0, which no `increase()` would see otherwise."""
        self.counts.update({(listener, reason.value): 0 for reason in Reason})

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


LOOPBACK: Final = "loopback"


class RequestSlot(Struct, eq=False):
    """One connection of `peer`; `end` closes it at once. `waiting`: for its client."""

    peer: str
    end: Callable[[], None]
    waiting: bool = True


class ConnectionSlots:
    """Gives out at most `most` connections, at most `most_of_peer` to one peer; needs no clock."""

    def __init__(self, most: int, most_of_peer: int) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._slots: dict[RequestSlot, None] = {}  # in the order in which they began to wait
        self._of_peer: Counter[str] = Counter()
        self.closed = False  # no more connections are taken, those in a TLS handshake included

    def enter(
        self, peer: str, end: Callable[[], None]
    ) -> tuple[RequestSlot | None, RequestSlot | None]:
        """A slot for a new connection, None where no room can be made; and the one it cost."""
        lost: RequestSlot | None = None
        if self.closed:
            return None, None
        if self._of_peer[peer] >= self._most_of_peer:
            lost = self._longest_waiting(peer)
        elif len(self._slots) >= self._most:
            waiting = Counter(slot.peer for slot in self._slots if slot.waiting)
            lost = self._longest_waiting(max(waiting, key=self._of_peer.__getitem__, default=""))
        else:
            return self._entered(peer, end), None
        if lost is None:
            return None, None
        self.leave(lost)
        lost.end()
        return self._entered(peer, end), lost

    def __contains__(self, slot: RequestSlot) -> bool:
        return slot in self._slots

    def leave(self, slot: RequestSlot) -> None:
        if slot in self._slots:
            del self._slots[slot]
            self._of_peer[slot.peer] -= 1
            if not self._of_peer[slot.peer]:
                del self._of_peer[slot.peer]

    def waits(self, slot: RequestSlot) -> None:
        slot.waiting = True
        if slot in self._slots:
            del self._slots[slot]
            self._slots[slot] = None

    def _entered(self, peer: str, end: Callable[[], None]) -> RequestSlot:
        slot = RequestSlot(peer, end)
        self._slots[slot] = None
        self._of_peer[peer] += 1
        return slot

    def _longest_waiting(self, peer: str) -> RequestSlot | None:
        return next((s for s in self._slots if s.waiting and s.peer == peer), None)


def peer_of(address: object) -> str:
    """Whom a connection's address counts for.

    IPv6 by its network of 64 bits, since a host has all of it; addresses of the loopback interface
    are one, `LOOPBACK`; "" for a Unix socket.
    """
    return _peer(str(address[0]).partition("%")[0]) if isinstance(address, tuple) else ""


@lru_cache(maxsize=1024)
def _peer(host: str) -> str:
    found = ipaddress.ip_address(host)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped  # of a socket for both
    if found.is_loopback:
        return LOOPBACK
    network = isinstance(found, ipaddress.IPv6Address)
    return str(ipaddress.ip_network((found, 64), strict=False) if network else found)
