"""Where the API listens: a TCP address for everyone on the node, a Unix socket for root.

Each has limits of its own, so that clients of one take nothing from those of the other.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nodeagent.api.answers import Answers
from nodeagent.api.connection import Serving
from nodeagent.api.limits import SOCKET_LIMITS, TCP_LIMITS, Refusals, RequestLimits
from nodeagent.api.routes import create_app
from nodeagent.errors import NodeagentError

SOCKET_NAME = "agent.sock"


@asynccontextmanager
async def listen(
    answers: Answers, host: str, port: int, refusals: Refusals, limits: RequestLimits = TCP_LIMITS
) -> AsyncIterator[int]:
    """Serve the API over TCP; gives the port. `host` "" means all addresses, `port` 0 any free one.

    Raises NodeagentError when the address cannot be used.
    """
    app = create_app(answers, listen_host=host, limits=limits)
    serving = Serving(app, "api", limits, refusals)
    try:
        try:
            await serving.start(host=host or None, port=port)
        except OSError as error:
            raise NodeagentError.of(
                "apiAddress", host=host, port=port, why=error.strerror or error
            ) from error
        yield serving.port
    finally:
        await serving.end()


@asynccontextmanager
async def listen_on_socket(
    answers: Answers, path: Path, refusals: Refusals, limits: RequestLimits = SOCKET_LIMITS
) -> AsyncIterator[None]:
    """Serve the API on a Unix socket that only root and the agent's own user can use.

    Raises NodeagentError when it cannot be made.
    """
    app = create_app(answers, listen_host="", limits=limits)
    serving = Serving(app, "socket", limits, refusals)
    listener = _private_socket(path)
    try:
        await serving.start(sock=listener)
        yield
    finally:
        await serving.end()
        listener.close()
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # of a file system that is read-only now
        path.unlink()


def _private_socket(path: Path) -> socket.socket:
    """A Unix socket of mode 0600. The caller holds the writer's lock, so one that lies there is
    left from an earlier agent, and none of a later one is there at the end.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)  # which `bind` gives the file
        listener.bind(str(path))
        return listener
    except OSError as error:
        listener.close()
        raise NodeagentError.of("apiSocket", path=path, why=error.strerror or error) from error
