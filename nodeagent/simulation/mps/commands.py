"""What the daemon replies to commands of protocol v2.

Every mistake ends with status 0, some with no reply at all. Replies end with a newline, except
empty ones. What concerns no running client was compared with the real programs of 535 and 550.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from nodeagent.simulation.mps import settings
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.servers import Server, Servers
from nodeagent.simulation.mps.settings import Settings

_DEFAULTS = (  # the spelling is the daemon's own
    "Control deamon settings can only be modified by the user started it or by the root user."
)
_CHANGE = "Only the root user may change settings for another user's server."
_START = "Only the root user may start server for another user."
_SHUTDOWN = "Only the root user may shutdown another user's server."
_TERMINATE = "Only the root user may terminate clients on another user's server."
_BAD_ORDINAL = "Invalid device ordinal!"


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


Answer = str | Wait | Quit


class Refusal(Exception):
    """A command ends early with this reply."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


class Commands:
    """Answers one line after the other; `do_WORD` is the command WORD."""

    def __init__(self, servers: Servers, *, log: Log, knobs: Watched) -> None:
        self._servers = servers
        self._log = log
        self._knobs = knobs
        self._guarded = servers.version.guards_settings
        self._lacking = set[str]() if servers.version.server_status else {"get_server_status"}

    def answer(self, line: str, caller: Caller) -> Answer:
        word, _, rest = line.strip().partition(" ")
        command: Callable[[str, Caller], Answer] | None = getattr(self, f"do_{word}", None)
        if command is None or word in self._lacking:
            return f'Unknown command "{word}"\n'
        try:
            return command(rest.strip(), caller)
        except Refusal as refusal:
            return refusal.reply

    # --- servers ------------------------------------------------------------------------------

    def do_get_server_list(self, rest: str, caller: Caller) -> Answer:
        server = self._servers.current
        return f"{server.pid}\n" if server else ""

    def do_get_server_status(self, rest: str, caller: Caller) -> Answer:
        return f"{self._find(rest).state}\n" if rest else "A server PID is required\n"

    def do_start_server(self, rest: str, caller: Caller) -> Answer:
        option, _, user = rest.partition(" ")
        if option != "-uid" or not user.strip()[:1].isdigit():
            return "A user id (UID) is required to start a new server\n"
        uid = settings.integer(user)
        self._require(caller, uid, _START)
        self._servers.request(uid)
        return ""

    def do_shutdown_server(self, rest: str, caller: Caller) -> Answer:
        server = self._find(rest)
        self._require(caller, server.uid, _SHUTDOWN)
        if "-f" in rest.split():
            self._servers.force(server)
        else:
            server.leaving = True
            self._servers.go_on()
        return ""

    # --- clients ------------------------------------------------------------------------------

    def do_get_client_list(self, rest: str, caller: Caller) -> Answer:
        server = self._find(rest)
        if self._is_busy(server):  # not even logged
            return ""
        return "".join(f"{client['pid']}\n" for client in server.clients)

    def do_terminate_client(self, rest: str, caller: Caller) -> Answer:
        named, client = [*rest.split(), "0", "0"][:2]
        try:
            server = self._ready(named)
        except Refusal as refusal:
            return f"{refusal.reply}Server {settings.integer(named)} not found!\n1\n"
        self._require(caller, server.uid, _TERMINATE)
        wanted = settings.integer(client)
        if all(c["pid"] != wanted for c in server.clients):
            return f"Invalid process {wanted}!\n1\n"
        server.send({"terminate": wanted})
        return Wait(server, wanted)

    # --- thread percentages, memory limits ------------------------------------------------------

    def do_get_default_active_thread_percentage(self, rest: str, caller: Caller) -> Answer:
        return f"{self._servers.defaults.percentage:.1f}\n"

    def do_get_active_thread_percentage(self, rest: str, caller: Caller) -> Answer:
        return f"{self._ready(rest).settings.percentage:.1f}\n"

    def do_set_default_active_thread_percentage(self, rest: str, caller: Caller) -> Answer:
        defaults = self._own_defaults(caller)
        if self._knobs.get("ignore_settings") and (wanted := settings.percentage(rest)):
            return f"{wanted:.1f}\n"
        return self._set_percentage(defaults, rest)

    def do_set_active_thread_percentage(self, rest: str, caller: Caller) -> Answer:
        named, _, value = rest.partition(" ")
        server = self._own_server(named, caller)
        reply = self._set_percentage(server.settings, value)
        server.send({"settings": server.settings.to_json()})
        return reply

    def do_get_default_device_pinned_mem_limit(self, rest: str, caller: Caller) -> Answer:
        return self._limit(self._servers.defaults, rest)

    def do_get_device_pinned_mem_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, device = rest.partition(" ")
        return self._limit(self._ready(named).settings, device)

    def do_set_default_device_pinned_mem_limit(self, rest: str, caller: Caller) -> Answer:
        defaults = self._own_defaults(caller)
        if not self._knobs.get("ignore_settings"):
            self._set_limit(defaults, rest)
        return ""

    def do_set_device_pinned_mem_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, limit = rest.partition(" ")
        server = self._own_server(named, caller)
        self._set_limit(server.settings, limit)
        server.send({"settings": server.settings.to_json()})
        return ""

    def _set_percentage(self, changed: Settings, text: str) -> str:
        """A bad one leaves what was there; only the log says why."""
        wanted = settings.percentage(text)
        if wanted is None:
            self._log("Invalid percentage, expected between (0.0, 100.0]")
        else:
            changed.percentage = wanted
        return f"{changed.percentage:.1f}\n"

    def _limit(self, shown: Settings, text: str) -> str:
        device = settings.integer(text)
        if not 0 <= device < settings.DEVICES:
            self._log(_BAD_ORDINAL)
        elif device not in shown.limits:
            self._log("No default pinned memory limit set for the device!")
        else:
            return f"{settings.shown_limit(shown.limits[device])}\n"
        return ""

    def _set_limit(self, changed: Settings, text: str) -> None:
        key, _, value = text.partition(" ")
        if self._servers.version.limits_by_uuid and key.startswith(("GPU-", "MIG-")):
            devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            device = devices.index(key) if key in devices else 0
        else:
            device, value = settings.device_and_limit(text)
        if not 0 <= device < settings.DEVICES:
            self._log(_BAD_ORDINAL)
            return
        changed.limits.pop(device, None)
        if size := settings.limit(value):
            changed.limits[device] = size

    # --- the rest -----------------------------------------------------------------------------

    def do_quit(self, rest: str, caller: Caller) -> Answer:
        if not caller.owner:
            return "Not enough privilege to execute quit command\n"
        words = rest.split()
        if words[:1] != ["-t"] or len(words) == 1:
            return Quit(None)
        return Quit(settings.integer(words[1]))

    # --- what a command may touch; these raise Refusal --------------------------------------------

    def _server(self, named: str) -> Server | None:
        """The server with this pid, ready or not."""
        server = self._servers.current
        return server if server and server.pid == settings.integer(named) else None

    def _find(self, named: str) -> Server:
        server = self._server(named)
        if server is None:
            raise Refusal(_not_found(named))
        return server

    def _ready(self, named: str) -> Server:
        """While the server is busy the reply is empty."""
        server = self._find(named)
        if self._is_busy(server):
            self._log_busy(server)
            raise Refusal("")
        return server

    def _own_server(self, named: str, caller: Caller) -> Server:
        """One whose settings the caller may change."""
        server = self._ready(named)
        if self._guarded:
            self._require(caller, server.uid, _CHANGE)
        return server

    def _own_defaults(self, caller: Caller) -> Settings:
        if self._guarded and not caller.owner:
            raise self._refusal(caller, _DEFAULTS)
        return self._servers.defaults

    def _require(self, caller: Caller, uid: int, why: str) -> None:
        """That the caller may touch what is this user's."""
        if caller.uid not in {0, uid}:
            raise self._refusal(caller, why)

    def _refusal(self, caller: Caller, why: str) -> Refusal:
        """Up to 535 without the reason."""
        sentence = f"Insufficient privileges for UID {caller.uid}"
        return Refusal(f"{sentence}. {why}\n" if self._guarded else f"{sentence}\n")

    def _is_busy(self, server: Server) -> bool:
        return not server.is_ready or bool(self._knobs.get("server_busy"))

    def _log_busy(self, server: Server) -> None:
        self._log(f"Server {server.pid} is <busy>")


def _not_found(named: str) -> str:
    return f"Server {settings.integer(named)} not found\n"
