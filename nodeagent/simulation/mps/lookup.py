"""How commands find a server, and what is replied when they cannot or may not."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.simulation.mps import values
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.servers import Server, Servers

_NOT_YOURS = "Insufficient privileges for UID {uid}"
_CHANGE = "Only the root user may change settings for another user's server."


class Caller(NamedTuple):
    """Who sits at the front-end."""

    uid: int
    owner: bool  # root, or the user who started the daemon


class Wait(NamedTuple):
    """No reply yet: a client is being terminated."""

    server: Server
    client: int


class Quit(NamedTuple):
    """The daemon shall end; seconds until servers are forced, None to wait for ever."""

    timeout: int | None


Answer = str | Wait | Quit  # replies end with a newline


class Lookup:
    """The servers as a command sees them."""

    def __init__(self, servers: Servers, *, log: Log, knobs: Watched) -> None:
        self.servers = servers
        self.log = log
        self.knobs = knobs
        self.guarded = servers.version.guards_settings

    def find(self, pid: int) -> Server | None:
        """The server with this pid, ready or not."""
        server = self.servers.current
        return server if server is not None and server.pid == pid else None

    def is_busy(self, server: Server) -> bool:
        """Whether commands about it get no reply."""
        ready = server.connection is not None and server.state != "INITIALIZING"
        return not ready or bool(self.knobs.get("server_busy"))

    def busy(self, server: Server) -> bool:
        """The same, and the log says so."""
        busy = self.is_busy(server)
        if busy:
            self.log(f"Server {server.pid} is <busy>")
        return busy

    def ready(self, named: str) -> Server | str:
        """The server with this pid, or what is replied instead."""
        server = self.find(values.integer(named))
        if server is None:
            return not_found(named)
        return "" if self.busy(server) else server

    def mine(self, named: str, caller: Caller) -> Server | str:
        """The same for a server whose settings the caller may change."""
        server = self.ready(named)
        if isinstance(server, Server) and self.guarded and not may(caller, server.uid):
            return self.refused(caller, _CHANGE)
        return server

    def refused(self, caller: Caller, why: str) -> str:
        """Up to 535 without the reason."""
        sentence = _NOT_YOURS.format(uid=caller.uid)
        return f"{sentence}. {why}\n" if self.guarded else f"{sentence}\n"


def not_found(named: str) -> str:
    """The reply for a pid that no server has."""
    return f"Server {values.integer(named)} not found\n"


def may(caller: Caller, uid: int) -> bool:
    """Whether he may touch what is this user's."""
    return caller.uid in {0, uid}
