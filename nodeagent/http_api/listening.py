"""Where the API listens: a TCP address for everyone on the node, a Unix socket for root."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from nodeagent.errors import NodeagentError

SOCKET_NAME = "agent.sock"
_MOST_CONNECTIONS = 256  # each takes a descriptor, which the work with the GPUs needs too
_LARGEST_LINE = 4096  # bytes of a request line or a header
_SHUTDOWN = 1.0  # seconds for answers under way


@asynccontextmanager
async def listening(
    app: web.Application, *, host: str, port: int, unix_socket: Path | None
) -> AsyncIterator[int]:
    """Serve `app`; gives the TCP port. `host` "" means all addresses, `port` 0 any free one.

    Raises NodeagentError when an address cannot be had.
    """
    runner = runner_of(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        try:
            await site.start()
        except OSError as error:
            raise NodeagentError(
                f"the API cannot listen on {host}:{port}: {error.strerror or error}",
                remedy="set api.listen to an address of this machine that is free",
            ) from error
        if unix_socket:
            await web.SockSite(runner, _private_socket(unix_socket)).start()
        yield next((a[1] for a in runner.addresses if isinstance(a, tuple)), port)
    finally:
        await runner.cleanup()
        if unix_socket:
            _remove(unix_socket)


def runner_of(app: web.Application) -> web.AppRunner:
    """What serves an application within the bounds that hold for every listener."""
    return _Runner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # who followed the events and left is forgotten at once
        access_log=None,
        shutdown_timeout=_SHUTDOWN,
        keepalive_timeout=15.0,
        max_line_size=_LARGEST_LINE,
        max_field_size=_LARGEST_LINE,
        auto_decompress=False,
    )


class _Runner(web.AppRunner):
    """Whoever on the node opens connections without end is turned away, and harms nobody else."""

    @property
    def server(self) -> Any:  # what listens calls it for each connection
        server = super().server
        if server is None:
            return None
        return lambda: server() if len(server.connections) < _MOST_CONNECTIONS else _Refusal()


class _Refusal(asyncio.Protocol):
    """Ends a connection as it begins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _private_socket(path: Path) -> socket.socket:
    """A Unix socket that only its owner can use. Whoever calls holds the writer's lock, so one
    that lies there already is left from an earlier life.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)  # nobody can connect before it listens
    except OSError as error:
        listener.close()
        raise NodeagentError(
            f"the API cannot listen on {path}: {error.strerror or error}",
            remedy="set run.dir to a short path that the agent can write",
        ) from error
    return listener
