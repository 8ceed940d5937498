"""Which connections one listener has, and which of them ends when there is no room for another.

A connection that waits for its client (for a request, or for its answer to be taken) makes way: the
one that has waited longest, of the peer with most connections. A client that sends its request at
once is in that state for an instant, so that clients which hold connections keep it out of nothing.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

LOOPBACK: Final = "loopback"


@dataclass(slots=True, eq=False)
class Slot:
    """One connection of `peer`; `end` closes it at once. `waiting`: for its client."""

    peer: str
    end: Callable[[], None]
    waiting: bool = True


class ConnectionSlots:
    """At most `most` connections, at most `most_of_peer` of one peer. No clock is needed."""

    def __init__(self, most: int, most_of_peer: int) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._slots: dict[Slot, None] = {}  # those that wait, in the order in which they began to
        self._of_peer: Counter[str] = Counter()
        self._closed = False

    def enter(self, peer: str, end: Callable[[], None]) -> tuple[Slot | None, Slot | None]:
        """A slot for a new connection, None where no room can be made; and the one it cost."""
        lost: Slot | None = None
        if self._closed:
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

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._slots

    def leave(self, slot: Slot) -> None:
        if slot in self._slots:
            del self._slots[slot]
            self._of_peer[slot.peer] -= 1
            if not self._of_peer[slot.peer]:
                del self._of_peer[slot.peer]

    def waits(self, slot: Slot) -> None:
        slot.waiting = True
        if slot in self._slots:
            del self._slots[slot]
            self._slots[slot] = None

    def close(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether no more connections are taken, those in a TLS handshake included."""
        return self._closed

    def _entered(self, peer: str, end: Callable[[], None]) -> Slot:
        slot = Slot(peer, end)
        self._slots[slot] = None
        self._of_peer[peer] += 1
        return slot

    def _longest_waiting(self, peer: str) -> Slot | None:
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
