"""What the daemon replies to commands of protocol v2.

Every mistake ends with status 0, some with no reply at all. Replies end with a newline, except
empty ones. What concerns no running client was compared with the real programs of 535 and 550.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.simulation.mps import processes, values
from nodeagent.simulation.mps.lookup import Answer, Caller, Lookup, Quit, Wait, may, not_found
from nodeagent.simulation.mps.setting_commands import SettingCommands

_START = "Only the root user may start server for another user."
_SHUTDOWN = "Only the root user may shutdown another user's server."
_TERMINATE = "Only the root user may terminate clients on another user's server."
_PS_WIDTHS = (10, 10, 15, 25, 15, 15)
_PARTITION_WIDTHS = (40, 40, 12, 12, 12, 12, 10)


MODULES = frozenset({"server", "namespace", "client"})  # of protocol v3, each with a `list`


class Commands:
    """Answers one line after the other. Of protocol v3 there is only that it is understood: nothing
    can be made by it, so its lists are empty.
    """

    def __init__(self, lookup: Lookup, *, partitioned: bool, protocol: str) -> None:
        self._lookup = lookup
        self._servers = servers = lookup.servers
        self._commands: dict[str, Callable[[str, Caller], Answer]] = {
            "get_server_list": self._list,
            "start_server": self._start,
            "shutdown_server": self._shutdown,
            "get_client_list": self._clients,
            "get_device_client_list": self._device_clients,
            "ps": self._ps,
            "terminate_client": self._terminate,
            "quit": self._quit,
        }
        self._commands |= SettingCommands(lookup).commands
        if servers.version.server_status:
            self._commands["get_server_status"] = self._status
        if partitioned:
            self._commands["lspart"] = self._partitions
        if protocol == "3":
            self._commands |= dict.fromkeys(MODULES, self._list_of_module)

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
        server = self._lookup.find(values.integer(rest))
        return f"{server.state}\n" if server else not_found(rest)

    def _start(self, rest: str, caller: Caller) -> Answer:
        option, _, user = rest.partition(" ")
        if option != "-uid" or not user.strip()[:1].isdigit():
            return "A user id (UID) is required to start a new server\n"
        uid = values.integer(user)
        if not may(caller, uid):
            return self._lookup.refused(caller, _START)
        self._servers.request(uid)
        return ""

    def _shutdown(self, rest: str, caller: Caller) -> Answer:
        server = self._lookup.find(values.integer(rest))
        if server is None:
            return not_found(rest)
        if not may(caller, server.uid):
            return self._lookup.refused(caller, _SHUTDOWN)
        if "-f" in rest.split():
            self._servers.force(server)
        else:
            server.leaving = True
            self._servers.go_on()
        return ""

    # --- clients ----------------------------------------------------------------------------

    def _clients(self, rest: str, caller: Caller) -> Answer:
        server = self._lookup.find(values.integer(rest))
        if server is None:
            return not_found(rest)
        if self._lookup.is_busy(server):  # not even logged
            return ""
        return "".join(f"{client['pid']}\n" for client in server.clients)

    def _device_clients(self, rest: str, caller: Caller) -> Answer:
        current = self._servers.current
        if not rest and current is None:
            return ""
        server = self._lookup.ready(rest if current is None or rest else str(current.pid))
        if isinstance(server, str):
            return server
        return "".join(f"{client['device']} {client['pid']}\n" for client in server.clients)

    def _ps(self, rest: str, caller: Caller) -> Answer:
        option, _, pid = rest.partition(" ")
        given = option == "-p"
        current = self._servers.current
        server = self._lookup.find(values.integer(pid)) if given else current
        if server is None:
            return f"{not_found(pid) * 2}\n" if given else "Server not found\n"
        if self._lookup.busy(server):
            return f"{not_found(pid)}\n" if given else "Server not found\n"
        rows: list[tuple[object, ...]] = [
            ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"),
            *(
                (c["pid"], 0, server.pid, c["device"], *processes.described(c["pid"]))
                for c in server.clients
            ),
        ]
        return "".join(_row(row, _PS_WIDTHS) for row in rows)

    def _terminate(self, rest: str, caller: Caller) -> Answer:
        named, client = [*rest.split(), "0", "0"][:2]
        pid = values.integer(named)
        server = self._lookup.ready(named)
        if isinstance(server, str):
            return f"{server}Server {pid} not found!\n1\n"
        if not may(caller, server.uid):
            return self._lookup.refused(caller, _TERMINATE)
        wanted = values.integer(client)
        if all(c["pid"] != wanted for c in server.clients):
            return f"Invalid process {wanted}!\n1\n"
        server.send({"terminate": wanted})
        return Wait(server, wanted)

    # --- the rest -----------------------------------------------------------------------------

    def _list_of_module(self, rest: str, caller: Caller) -> Answer:
        return "" if rest == "list" else f'Unknown command "{rest}"\n'

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


def _row(cells: tuple[object, ...], widths: tuple[int, ...]) -> str:
    padded = (f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{''.join(padded)}\n"
