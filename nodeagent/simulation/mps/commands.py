"""What the daemon replies to commands of protocol v2.

Every mistake ends with status 0, some with no reply at all. Replies end with a newline, except
empty ones. What concerns no running client was compared with the real programs of 535 and 550.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nodeagent.simulation.mps import values
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.servers import Server, Servers

_NOT_YOURS = "Insufficient privileges for UID {uid}. "
_DEFAULTS = (  # the spelling is the daemon's own
    "Control deamon settings can only be modified by the user started it or by the root user."
)
_START = "Only the root user may start server for another user."
_CHANGE = "Only the root user may change settings for another user's server."
_SHUTDOWN = "Only the root user may shutdown another user's server."
_TERMINATE = "Only the root user may terminate clients on another user's server."
_BAD_PERCENTAGE = "Invalid percentage, expected between (0.0, 100.0]"
_BAD_ORDINAL = "Invalid device ordinal!"
_PS_WIDTHS = (10, 10, 15, 25, 15, 15)
_PARTITION_WIDTHS = (40, 40, 12, 12, 12, 12, 10)


class Caller(NamedTuple):
    """Who sits at the front-end."""

    uid: int
    owner: bool  # root, or whoever started the daemon


class Wait(NamedTuple):
    """No reply yet: a client is being terminated."""

    server: Server
    client: int


class Quit(NamedTuple):
    """The daemon shall end; seconds until servers are forced, None to wait for ever."""

    timeout: int | None


Answer = str | Wait | Quit


class Commands:
    """Answers one line after the other."""

    def __init__(self, servers: Servers, *, log: Log, knobs: Watched, partitioned: bool) -> None:
        self._servers = servers
        self._defaults = servers.defaults
        self._log = log
        self._knobs = knobs
        self._commands: dict[str, Callable[[str, Caller], Answer]] = {
            "get_server_list": self._list,
            "start_server": self._start,
            "shutdown_server": self._shutdown,
            "get_client_list": self._clients,
            "get_device_client_list": self._device_clients,
            "ps": self._ps,
            "get_default_active_thread_percentage": self._get_default_percentage,
            "set_default_active_thread_percentage": self._set_default_percentage,
            "get_active_thread_percentage": self._get_percentage,
            "set_active_thread_percentage": self._set_percentage,
            "get_default_device_pinned_mem_limit": self._get_default_limit,
            "set_default_device_pinned_mem_limit": self._set_default_limit,
            "get_device_pinned_mem_limit": self._get_limit,
            "set_device_pinned_mem_limit": self._set_limit,
            "get_default_client_priority": self._get_priority,
            "set_default_client_priority": self._set_priority,
            "terminate_client": self._terminate,
            "quit": self._quit,
        }
        if servers.version.server_status:
            self._commands["get_server_status"] = self._status
        if partitioned:
            self._commands["lspart"] = self._partitions

    def answer(self, line: str, caller: Caller) -> Answer:
        word, _, rest = line.strip().partition(" ")
        command = self._commands.get(word)
        return f'Unknown command "{word}"\n' if command is None else command(rest.strip(), caller)

    # --- servers ----------------------------------------------------------------------------

    def _list(self, rest: str, caller: Caller) -> Answer:
        server = self._servers.current
        return f"{server.pid}\n" if server else ""

    def _status(self, rest: str, caller: Caller) -> Answer:
        if not rest:
            return "A server PID is required\n"
        server = self._find(values.integer(rest))
        return f"{server.state}\n" if server else _not_found(rest)

    def _start(self, rest: str, caller: Caller) -> Answer:
        option, _, user = rest.partition(" ")
        if option != "-uid" or not user.strip()[:1].isdigit():
            return "A user id (UID) is required to start a new server\n"
        uid = values.integer(user)
        if not _may(caller, uid):
            return _refused(caller, _START)
        self._servers.request(uid)
        return ""

    def _shutdown(self, rest: str, caller: Caller) -> Answer:
        server = self._find(values.integer(rest))
        if server is None:
            return _not_found(rest)
        if not _may(caller, server.uid):
            return _refused(caller, _SHUTDOWN)
        if "-f" in rest.split():
            self._servers.force(server)
        else:
            server.leaving = True
            self._servers.go_on()
        return ""

    # --- clients ----------------------------------------------------------------------------

    def _clients(self, rest: str, caller: Caller) -> Answer:
        server = self._find(values.integer(rest))
        if server is None:
            return _not_found(rest)
        if self._is_busy(server):  # not even logged
            return ""
        return "".join(f"{client['pid']}\n" for client in server.clients)

    def _device_clients(self, rest: str, caller: Caller) -> Answer:
        if not rest and self._servers.current is None:
            return ""
        server = self._ready(rest or str(self._servers.current and self._servers.current.pid))
        if isinstance(server, str):
            return server
        return "".join(f"{client['device']} {client['pid']}\n" for client in server.clients)

    def _ps(self, rest: str, caller: Caller) -> Answer:
        option, _, pid = rest.partition(" ")
        given = option == "-p"
        current = self._servers.current
        server = self._find(values.integer(pid)) if given else current
        if server is None:
            return f"{_not_found(pid) * 2}\n" if given else "Server not found\n"
        if self._busy(server):
            return f"{_not_found(pid)}\n" if given else "Server not found\n"
        rows: list[tuple[object, ...]] = [
            ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"),
            *(
                (c["pid"], 0, server.pid, c["device"], c["namespace"], c["command"])
                for c in server.clients
            ),
        ]
        return "".join(_row(row, _PS_WIDTHS) for row in rows)

    def _terminate(self, rest: str, caller: Caller) -> Answer:
        named, client = [*rest.split(), "0", "0"][:2]
        pid = values.integer(named)
        server = self._ready(named)
        if isinstance(server, str):
            return f"{server}Server {pid} not found!\n1\n"
        if not _may(caller, server.uid):
            return _refused(caller, _TERMINATE)
        wanted = values.integer(client)
        if all(c["pid"] != wanted for c in server.clients):
            return f"Invalid process {wanted}!\n1\n"
        server.tell({"terminate": wanted})
        return Wait(server, wanted)

    # --- thread percentages -------------------------------------------------------------------

    def _get_default_percentage(self, rest: str, caller: Caller) -> Answer:
        return f"{self._defaults.percentage:.1f}\n"

    def _set_default_percentage(self, rest: str, caller: Caller) -> Answer:
        if not caller.owner:
            return _refused(caller, _DEFAULTS)
        wanted = values.percentage(rest)
        if wanted is None:
            self._log(_BAD_PERCENTAGE)
        elif self._knobs.get("ignore_settings"):
            return f"{wanted:.1f}\n"
        else:
            self._defaults.percentage = wanted
        return f"{self._defaults.percentage:.1f}\n"

    def _get_percentage(self, rest: str, caller: Caller) -> Answer:
        server = self._ready(rest)
        return server if isinstance(server, str) else f"{server.settings.percentage:.1f}\n"

    def _set_percentage(self, rest: str, caller: Caller) -> Answer:
        named, _, value = rest.partition(" ")
        server = self._mine(named, caller)
        if isinstance(server, str):
            return server
        wanted = values.percentage(value)
        if wanted is None:
            self._log(_BAD_PERCENTAGE)
        else:
            server.settings.percentage = wanted
            server.tell({"settings": server.settings.to_json()})
        return f"{server.settings.percentage:.1f}\n"

    # --- memory limits ------------------------------------------------------------------------

    def _get_default_limit(self, rest: str, caller: Caller) -> Answer:
        return self._limit(self._defaults.limits, values.integer(rest))

    def _set_default_limit(self, rest: str, caller: Caller) -> Answer:
        if not caller.owner:
            return _refused(caller, _DEFAULTS)
        if not self._knobs.get("ignore_settings"):
            self._set(self._defaults.limits, rest)
        return ""

    def _get_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, device = rest.partition(" ")
        server = self._ready(named)
        if isinstance(server, str):
            return server
        return self._limit(server.settings.limits, values.integer(device))

    def _set_limit(self, rest: str, caller: Caller) -> Answer:
        named, _, limit = rest.partition(" ")
        server = self._mine(named, caller)
        if isinstance(server, str):
            return server
        self._set(server.settings.limits, limit)
        server.tell({"settings": server.settings.to_json()})
        return ""

    def _limit(self, limits: dict[int, int], device: int) -> str:
        if not 0 <= device < values.DEVICES:
            self._log(_BAD_ORDINAL)
        elif device not in limits:
            self._log("No default pinned memory limit set for the device!")
        else:
            return f"{values.shown_limit(limits[device])}\n"
        return ""

    def _set(self, limits: dict[int, int], text: str) -> None:
        key, _, value = text.partition(" ")
        if self._servers.version.limits_by_uuid and key.startswith(("GPU-", "MIG-")):
            device = 0  # one daemon for one device is what can be simulated
        else:
            device, value = values.device_and_limit(text)
        if not 0 <= device < values.DEVICES:
            self._log(_BAD_ORDINAL)
            return
        limits.pop(device, None)
        if size := values.limit(value):
            limits[device] = size

    # --- the rest -----------------------------------------------------------------------------

    def _get_priority(self, rest: str, caller: Caller) -> Answer:
        return f"{self._defaults.priority}\n"

    def _set_priority(self, rest: str, caller: Caller) -> Answer:
        if not caller.owner:
            return _refused(caller, _DEFAULTS)
        wanted = values.integer(rest)
        if wanted not in (0, 1):
            return "Invalid priority value - must be 0 or 1!\n"
        self._defaults.priority = wanted
        return ""

    def _partitions(self, rest: str, caller: Caller) -> Answer:
        names = ("GPU", "Partition", "Free", "Used", "Free", "Used", "Clients")
        units = ("", "", "Chunk", "Chunk", "SM", "SM", "")
        return _row(names, _PARTITION_WIDTHS) + _row(units, _PARTITION_WIDTHS)

    def _quit(self, rest: str, caller: Caller) -> Answer:
        if not caller.owner:
            return "Not enough privilege to execute quit command\n"
        words = rest.split()
        if words[:1] != ["-t"] or len(words) == 1:
            return Quit(None)
        return Quit(values.integer(words[1]))

    # --- finding servers ------------------------------------------------------------------------

    def _find(self, pid: int) -> Server | None:
        server = self._servers.current
        return server if server is not None and server.pid == pid else None

    def _is_busy(self, server: Server) -> bool:
        ready = server.connection is not None and server.state != "INITIALIZING"
        return not ready or bool(self._knobs.get("server_busy"))

    def _busy(self, server: Server) -> bool:
        busy = self._is_busy(server)
        if busy:
            self._log(f"Server {server.pid} is <busy>")
        return busy

    def _ready(self, named: str) -> Server | str:
        """The server with this pid, or what is replied instead."""
        server = self._find(values.integer(named))
        if server is None:
            return _not_found(named)
        return "" if self._busy(server) else server

    def _mine(self, named: str, caller: Caller) -> Server | str:
        server = self._ready(named)
        if isinstance(server, Server) and not _may(caller, server.uid):
            return _refused(caller, _CHANGE)
        return server


def _not_found(named: str) -> str:
    return f"Server {values.integer(named)} not found\n"


def _refused(caller: Caller, why: str) -> str:
    return f"{_NOT_YOURS.format(uid=caller.uid)}{why}\n"


def _row(cells: tuple[object, ...], widths: tuple[int, ...]) -> str:
    padded = (f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{''.join(padded)}\n"


def _may(caller: Caller, uid: int) -> bool:
    """Whether he may touch what is this user's."""
    return caller.uid in {0, uid}
