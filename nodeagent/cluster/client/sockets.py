"""TCP connections that notice when the other end vanished without a word.

A watch only reads: when its server loses power or a firewall drops its packets, nothing is sent
that could stay unanswered, and the connection looks healthy for ever. So the kernel probes it.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

import aiohttp

# All in seconds, see tcp(7). A probe after 15 s of silence and every 10 s from then on; with
# TCP_USER_TIMEOUT set, the first probe due after that time ends the connection: at 35 s.
_IDLE: Final = 15
_INTERVAL: Final = 10
_PROBES: Final = 3
_UNANSWERED: Final = 30

# Below the API server's own 90 s, so that a connection is not closed while a request is sent on it.
# aiohttp's 15 s would cost most writes a TCP and a TLS handshake.
_KEPT: Final = 75.0


def connector(tls: ssl.SSLContext) -> aiohttp.TCPConnector:
    """The pool of connections to one server; to be made in the event loop, closed by its user."""
    return aiohttp.TCPConnector(ssl=tls, socket_factory=_socket, keepalive_timeout=_KEPT)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE),
        (socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, _UNANSWERED * 1000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
