"""Asks the running agent, over its Unix socket or its TCP address."""

from __future__ import annotations

import http.client
import json
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nodeagent.cli.command_settings import command_settings
from nodeagent.errors import NodeagentError
from nodeagent.settings import Address
from nodeagent.strict_json import parse_json

_Answer = TypeVar("_Answer")
_Json = TypeVar("_Json", dict[str, Any], list[Mapping[str, Any]])

_SOCKET = "agent.sock"  # below run.dir
_TIMEOUT = 5.0  # seconds for the agent to answer
_MAX_ANSWER = 16 << 20  # bytes of an answer, since any program may listen there


class AgentUnreachable(NodeagentError):
    """No agent answers."""


class AgentAddress(NamedTuple):
    """Where the agent may listen. The socket is tried first. Port 0: it alone."""

    socket: Path | None
    tcp: Address

    def __str__(self) -> str:
        known = (self.socket, self.tcp if self.tcp.port else None)
        return " or ".join(str(one) for one in known if one is not None)


class AgentRefused(NodeagentError):
    """The agent answered, but not with what was asked for; `status` is HTTP's."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


def agent_address(options: Namespace) -> AgentAddress:
    """The agent's address by the settings; --listen excludes the socket."""
    settings = command_settings(options)
    listen = settings.api.listen
    socket = None if getattr(options, "listen", None) else settings.run.dir / _SOCKET
    return AgentAddress(socket, Address(listen.host or "127.0.0.1", listen.port))


def get(address: AgentAddress, path: str) -> Mapping[str, Any]:
    """The JSON that the agent answers to GET.

    Raises AgentUnreachable, AgentRefused or NodeagentError.
    """
    return _asked(address, path, _object)


def get_list(address: AgentAddress, path: str) -> Sequence[Mapping[str, Any]]:
    """The list of objects that the agent answers to GET; raises as `get` does."""
    return _asked(address, path, lambda answer: _json(answer, list, "a list of objects"))


def get_text(address: AgentAddress, path: str, most: int) -> bytes:
    """The first bytes, at most so many, of the answer to GET, whatever its status says.

    Raises AgentUnreachable or NodeagentError.
    """
    return _asked(address, path, lambda connection: connection.getresponse().read(most))


def _asked(
    address: AgentAddress, path: str, read: Callable[[http.client.HTTPConnection], _Answer]
) -> _Answer:
    tcp = http.client.HTTPConnection(*address.tcp, timeout=_TIMEOUT)
    refusals: list[OSError] = []
    for connection in (_SocketConnection(address.socket), tcp) if address.socket else (tcp,):
        with closing(connection):
            try:
                connection.request("GET", path, headers={"Accept": "application/json"})
                return read(connection)
            except OSError as error:
                refusals.append(error)
            except http.client.IncompleteRead:  # as when the agent is killed
                refusals.append(ConnectionResetError("its answer ended in the middle"))
            except http.client.HTTPException as error:
                message = f"the program at {address} is not nodeagent: {error!r}"
                raise NodeagentError(message) from None
    raise _unreachable(address, refusals)


def post(
    address: AgentAddress, path: str, body: Mapping[str, object], *, patience: float | None
) -> Mapping[str, Any]:
    """Have something changed, over the Unix socket alone; the agent's answer when it is done.

    `patience` in seconds; None: however long it takes. Raises as `get` does.
    """
    if address.socket is None:
        raise NodeagentError("changes go over the agent's Unix socket", remedy="give --run-dir")
    with closing(_SocketConnection(address.socket)) as connection:
        try:
            connection.connect()
        except OSError as error:
            raise _unreachable(AgentAddress(address.socket, Address("", 0)), [error]) from None
        try:
            connection.sock.settimeout(patience)
            connection.request(
                "POST", path, json.dumps(body), headers={"Content-Type": "application/json"}
            )
            return _object(connection)
        except TimeoutError:
            raise NodeagentError(
                f"the agent has not answered for {patience:g} s; it is still working on it",
                remedy="see nodeagent mps status",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise NodeagentError(
                f"the agent at {address.socket} ended before it answered ({error})",
                remedy="see its log, and nodeagent mps status",
            ) from None


def _unreachable(address: AgentAddress, refusals: list[OSError]) -> AgentUnreachable:
    if any(isinstance(error, PermissionError) for error in refusals):
        return AgentUnreachable(
            f"{address.socket} may not be opened by this user", remedy="run this as root"
        )
    return AgentUnreachable(
        f"no agent answers at {address} ({refusals[-1].strerror or refusals[-1]})",
        remedy="start one: systemctl start nodeagent, or nodeagent run; "
        "or say where it is: --run-dir",
    )


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _json(connection: http.client.HTTPConnection, kind: type[_Json], words: str) -> _Json:
    """The answer, which has to be of this kind, `words`."""
    response = connection.getresponse()
    # Of a known length it is read whole: one that ends before is an agent's that was killed.
    most = None if response.length is not None and response.length <= _MAX_ANSWER else _MAX_ANSWER
    try:
        answer = parse_json(response.read(most))
    except ValueError:
        answer = None
    if response.status != http.client.OK:
        refusal = answer if isinstance(answer, dict) else {}
        plain = f"the agent answered {response.status} {response.reason}"
        raise AgentRefused(
            str(refusal.get("error") or plain),
            status=response.status,
            remedy=str(refusal.get("remedy") or ""),
        )
    objects = answer if isinstance(answer, list) else [answer]
    if not isinstance(answer, kind) or not all(isinstance(one, dict) for one in objects):
        raise NodeagentError(f"the program there is not nodeagent: its answer is not {words}")
    return answer


def _object(connection: http.client.HTTPConnection) -> Mapping[str, Any]:
    return _json(connection, dict, "a JSON object")
