"""What one client, and all of them together, may take of the agent's memory and time."""

from __future__ import annotations

from dataclasses import dataclass


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
