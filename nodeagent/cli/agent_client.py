"""Asks the running agent, over its Unix socket or its TCP address.

A request of HTTP/1.0 and its answer are read here: to import Python's client takes longer than the
rest of `nodeagent status`.
"""

import json
import math
import socket
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nodeagent.cli.command_settings import command_settings
from nodeagent.errors import NodeagentError
from nodeagent.settings import Address

_Json = TypeVar("_Json", dict[str, Any], list[Mapping[str, Any]])

_SOCKET = "agent.sock"  # below run.dir
_OK = 200
_TIMEOUT = 5.0  # seconds for the agent to answer
# Since any program may listen there.
_MAX_ANSWER = 16 << 20  # bytes
_MAX_LINE, _MAX_HEADERS, _MAX_DIGITS = 1 << 16, 100, 20

_CUT_OFF = "its answer ended in the middle"


class AgentUnreachable(NodeagentError):
    """No agent answers."""


class AgentAddress(NamedTuple):
    """Where the agent may listen. The socket is tried first."""

    socket: Path | None
    tcp: Address | None

    def __str__(self) -> str:
        return " or ".join(str(one) for one in self if one is not None)


class AgentRefused(NodeagentError):
    """The agent answered, but not with what was asked for; `status` is HTTP's."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


def agent_address(options: Namespace) -> AgentAddress:
    """The agent's address by the settings; --listen excludes the socket, and --run-dir the TCP
    address, where another agent may be.
    """
    settings = command_settings(options)
    listen = settings.api.listen
    tcp = Address(listen.host or "127.0.0.1", listen.port)
    if getattr(options, "listen", None):
        return AgentAddress(None, tcp)
    return AgentAddress(settings.run.dir / _SOCKET, None if options.run_dir else tcp)


class _NoHttp(Exception):
    """What answers is no HTTP; the message says what it is."""


class _Response(NamedTuple):
    status: int
    reason: str
    text: bytes


def get(address: AgentAddress, path: str) -> Mapping[str, Any]:
    """The JSON that the agent answers to GET.

    Raises AgentUnreachable, AgentRefused or NodeagentError.
    """
    return _json(_asked(address, path), dict, "a JSON object")


def get_list(address: AgentAddress, path: str) -> Sequence[Mapping[str, Any]]:
    """The list of objects that the agent answers to GET; raises as `get` does."""
    return _json(_asked(address, path), list, "a list of objects")


def get_text(address: AgentAddress, path: str, most: int) -> bytes:
    """The first bytes, at most so many, of the answer to GET, whatever its status says.

    Raises AgentUnreachable or NodeagentError.
    """
    return _asked(address, path, most).text


def _asked(address: AgentAddress, path: str, most: int = _MAX_ANSWER) -> _Response:
    refusals: list[OSError] = []
    for where in (one for one in address if one is not None):
        try:
            with _connected(where) as connection:
                return _exchange(connection, f"GET {path}", most=most)
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
        raise _unreachable(AgentAddress(address.socket, None), [error]) from None
    with connection:
        try:
            connection.settimeout(patience)
            answer = _exchange(connection, f"POST {path}", json.dumps(body).encode())
        except TimeoutError:
            raise NodeagentError.of("agentLate", seconds=f"{patience:g}") from None
        except (OSError, _NoHttp) as error:
            raise NodeagentError.of("agentEnded", socket=address.socket, why=error) from None
    return _json(answer, dict, "a JSON object")


def _unreachable(address: AgentAddress, refusals: list[OSError]) -> AgentUnreachable:
    if any(isinstance(error, PermissionError) for error in refusals):
        return AgentUnreachable.of("notRoot", socket=address.socket)
    return AgentUnreachable(  # not of the catalogue, whose reading takes longer than the answer
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


def _exchange(
    connection: socket.socket, request: str, body: bytes = b"", most: int = _MAX_ANSWER
) -> _Response:
    """Send a request and read the answer, of its text at most so many bytes.

    The request is one of HTTP/1.0, so that no answer comes in chunks. Raises OSError and _NoHttp.
    """
    head = [f"{request} HTTP/1.0", "Host: localhost", "Accept: application/json"]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    with connection.makefile("rb") as stream:
        if not (start := stream.read(5)).startswith(b"HTTP/"[: len(start)]):
            raise _NoHttp("it does not answer in HTTP")  # as a port with TLS
        rows = iter(lambda: _line(stream), "")
        version, status, reason = (*next(rows, "").split(" ", 2), "", "")[:3]
        if not (version.startswith("1.") and len(status) == 3 and status.isdecimal()):
            raise _NoHttp("it does not answer in HTTP")
        headers = dict(
            row.lower().split(":", 1) for row in islice(rows, _MAX_HEADERS) if ":" in row
        )
        length = headers.get("content-length", "").strip()
        known = length.isdecimal() and len(length) < _MAX_DIGITS
        wanted = min(int(length), most) if known else most
        text = stream.read(wanted)
    if known and len(text) < wanted:  # as when the agent is killed
        raise ConnectionResetError(_CUT_OFF)
    return _Response(int(status), reason, text)


def _line(stream: BinaryIO) -> str:
    line = stream.readline(_MAX_LINE)
    if not line.endswith(b"\n") and len(line) < _MAX_LINE:
        raise ConnectionResetError(_CUT_OFF)
    return line.decode("latin-1").rstrip("\r\n")


def _json(response: _Response, kind: type[_Json], words: str) -> _Json:
    """The answer, which has to be of this kind, `words`."""
    try:
        answer = json.loads(response.text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
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


def _finite(text: str) -> float:
    """A number as JSON has them; raises ValueError for NaN, and for 1e999, which is infinite."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number
