"""Asks the running agent, over its Unix socket or its TCP address."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.errors import NodeagentError

_PATIENCE = 5.0  # seconds for the agent to answer


class AgentUnreachable(NodeagentError):
    """No agent answers."""


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where the agent may be. The socket comes first: it needs no port and no guess."""

    socket: Path | None
    host: str
    port: int

    def __str__(self) -> str:
        tcp = f"{self.host}:{self.port}"
        return f"{self.socket} or {tcp}" if self.socket else tcp


def get(address: AgentAddress, path: str) -> Mapping[str, Any]:
    """The JSON that the agent answers to GET; raises AgentUnreachable or NodeagentError."""
    refusals: list[OSError] = []
    for connection in _connections(address):
        try:
            return _ask(connection, path)
        except OSError as error:
            refusals.append(error)
        except http.client.HTTPException as error:
            raise NodeagentError(f"what answers at {address} is no nodeagent: {error!r}") from None
        finally:
            connection.close()
    denied = next((error for error in refusals if isinstance(error, PermissionError)), None)
    if denied is not None:
        raise AgentUnreachable(
            f"{address.socket} may not be opened by this user", remedy="run this as root"
        )
    raise AgentUnreachable(
        f"no agent answers at {address} ({refusals[-1].strerror or refusals[-1]})",
        remedy="start one: systemctl start nodeagent, or nodeagent run",
    )


def _connections(address: AgentAddress) -> list[http.client.HTTPConnection]:
    tcp = http.client.HTTPConnection(address.host, address.port, timeout=_PATIENCE)
    return [_SocketConnection(address.socket), tcp] if address.socket else [tcp]


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(connection: http.client.HTTPConnection, path: str) -> Mapping[str, Any]:
    connection.request("GET", path, headers={"Accept": "application/json"})
    response = connection.getresponse()
    body = response.read()
    if response.status != http.client.OK:
        raise NodeagentError(f"the agent answered {response.status} {response.reason}")
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NodeagentError("what answers there is no nodeagent: its answer is not a JSON object")
    return answer
