"""Asks the running agent, over its Unix socket or its TCP address.

A request of HTTP/1.0 and its answer are read here: to import Python's client takes longer than the
rest of `nodeagent status`.
"""

from __future__ import annotations

import json
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nodeagent.cli.command_settings import command_settings
from nodeagent.errors import NodeagentError
from nodeagent.settings import Address
from nodeagent.strict_json import parse_json

_Answer = TypeVar("_Answer")
_Json = TypeVar("_Json", dict[str, Any], list[Mapping[str, Any]])

_SOCKET = "agent.sock"  # below run.dir
_OK = 200
_TIMEOUT = 5.0  # seconds for the agent to answer
# Since any program may listen there.
_MAX_ANSWER = 16 << 20  # bytes
_MAX_LINE, _MAX_HEADERS = 1 << 16, 100


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


class _NoHttp(Exception):
    """What answers is no HTTP; the message says what it is."""


class _Response(NamedTuple):
    """An answer of which the body is still to be read."""

    status: int
    reason: str
    length: int | None  # bytes, where the head says how many
    body: BinaryIO

    def read(self, most: int) -> bytes:
        """The first bytes, at most so many; raises ConnectionResetError where it ends too early."""
        wanted = most if self.length is None else min(most, self.length)
        found = self.body.read(wanted)
        if self.length is not None and len(found) < wanted:  # as when the agent is killed
            raise _CutOff
        return found


_CutOff = ConnectionResetError("its answer ended in the middle")


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
    return _asked(address, path, lambda answer: answer.read(most))


def _asked(address: AgentAddress, path: str, read: Callable[[_Response], _Answer]) -> _Answer:
    refusals: list[OSError] = []
    for where in (address.socket, address.tcp) if address.socket else (address.tcp,):
        try:
            with _connected(where) as connection, _exchange(connection, "GET", path) as stream:
                return read(_response(stream))
        except OSError as error:
            refusals.append(error)
        except _NoHttp as error:
            message = f"the program at {address} is not nodeagent: {error}"
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
    try:
        connection = _connected(address.socket)
    except OSError as error:
        raise _unreachable(AgentAddress(address.socket, Address("", 0)), [error]) from None
    with connection:
        try:
            connection.settimeout(patience)
            with _exchange(connection, "POST", path, json.dumps(body).encode()) as stream:
                return _object(_response(stream))
        except TimeoutError:
            raise NodeagentError(
                f"the agent has not answered for {patience:g} s; it is still working on it",
                remedy="see nodeagent mps status",
            ) from None
        except (OSError, _NoHttp) as error:
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


def _connected(where: Path | Address) -> socket.socket:
    """A connection to the agent's Unix socket or TCP address; raises OSError."""
    if isinstance(where, Address):
        return socket.create_connection(where, _TIMEOUT)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT)
        connection.connect(str(where))
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(connection: socket.socket, method: str, path: str, body: bytes = b"") -> BinaryIO:
    """Send a request; gives what is answered. Of HTTP/1.0, so that no answer comes in chunks."""
    head = [f"{method} {path} HTTP/1.0", "Host: localhost", "Accept: application/json"]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return connection.makefile("rb")


def _response(stream: BinaryIO) -> _Response:
    """The head of an answer; raises OSError and _NoHttp."""
    version, _, rest = _line(stream).partition(" ")
    status, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or len(status) != 3 or not status.isdecimal():
        raise _NoHttp("it does not answer in HTTP")
    length = ""
    for _ in range(_MAX_HEADERS):
        name, _, value = _line(stream).partition(":")
        if not name:
            return _Response(
                int(status), reason, int(length) if length.isdecimal() else None, stream
            )
        if name.casefold() == "content-length":
            length = value.strip()
    raise _NoHttp(f"its answer has more than {_MAX_HEADERS} headers")


def _line(stream: BinaryIO) -> str:
    line = stream.readline(_MAX_LINE)
    if not line.endswith(b"\n"):
        raise _NoHttp("it does not answer in HTTP") if len(line) == _MAX_LINE else _CutOff
    return line.decode("latin-1").rstrip("\r\n")


def _json(response: _Response, kind: type[_Json], words: str) -> _Json:
    """The answer, which has to be of this kind, `words`."""
    try:
        answer = parse_json(response.read(_MAX_ANSWER))
    except ValueError:
        answer = None
    if response.status != _OK:
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


def _object(response: _Response) -> Mapping[str, Any]:
    return _json(response, dict, "a JSON object")
