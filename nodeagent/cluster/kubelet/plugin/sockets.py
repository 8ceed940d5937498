"""Sockets of gRPC servers in the kubelet's folders.

A socket is bound under a hidden name, which the kubelet passes over, and gets its own name when it
is served and only root can use it; so it takes the place of one that an earlier agent left in one
step. Everything is done in the opened directory, so no symlink can lead it elsewhere. A socket that
is deleted, as when the kubelet's folders are cleared, is made again.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import structlog

from nodeagent.errors import NodeagentError
from nodeagent.files.watch import changes

log = structlog.get_logger(__name__)

LONGEST_PATH: Final = 107  # bytes that a Unix socket's address holds
LARGEST_REQUEST: Final = 256 << 10  # bytes
MOST_CALLS: Final = 512  # at once; some for each pod that starts or ends
_HIDDEN: Final = ".nodeagent"
_RETRY: Final = 5.0  # seconds until a deleted socket that could not be made again is tried again
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPTIONS: Final = [("grpc.max_receive_message_length", LARGEST_REQUEST)]


class SocketRefused(NodeagentError):
    """A socket for the kubelet cannot be had, or not safely."""


def check_path(socket: Path) -> None:
    """Raises SocketRefused for a path that no client could connect to."""
    if not socket.is_absolute() or ".." in socket.parts:
        raise SocketRefused(
            f"{socket} is no absolute path without ..", remedy="write kubelet.dir from / on"
        )
    if len(os.fsencode(socket)) > LONGEST_PATH:
        raise SocketRefused(
            f"{socket} has {len(os.fsencode(socket))} bytes, a socket's path at most "
            f"{LONGEST_PATH}",
            remedy="set kubelet.dir to a shorter path of the same directory",
        )


@asynccontextmanager
async def serve(socket: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> AsyncIterator[None]:
    """Serve at this path, also when the socket is deleted meanwhile. In the end the socket goes
    first, then calls under way are cancelled.

    Raises SocketRefused when it cannot be had. The directory is there, see `make_directory`.
    """
    kept = _KeptSocket(socket, handlers)
    await kept.bind()
    keeping = asyncio.create_task(kept.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await kept.close()


class _KeptSocket:
    """The socket at `path`, with the server behind it."""

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._path = path
        self._handlers = handlers
        self._server = AsyncExitStack()

    async def bind(self) -> None:
        """Serve at the path, then stop the server that did before. Raises SocketRefused."""
        server = AsyncExitStack()
        await server.enter_async_context(_bound(self._path, self._handlers))
        before, self._server = self._server, server
        await before.aclose()

    async def keep(self) -> None:
        """Make the socket again when it is deleted, until cancelled.

        What another agent put in its place is left alone.
        """
        async for _ in changes(self._path):
            while self._is_deleted():
                try:
                    await self.bind()
                    log.warning("a socket was deleted, and is made again", socket=str(self._path))
                except SocketRefused as error:
                    log.warning("a deleted socket cannot be made again", error=error.message)
                    await asyncio.sleep(_RETRY)

    async def close(self) -> None:
        """Stop serving, and remove the socket."""
        await self._server.aclose()

    def _is_deleted(self) -> bool:
        return not os.path.lexists(self._path)


@asynccontextmanager
async def _bound(socket: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> AsyncIterator[None]:
    """Serve at this path as long as this lasts."""
    directory = _open(socket.parent)
    server = grpc.aio.server(
        handlers=handlers, options=_OPTIONS, maximum_concurrent_rpcs=MOST_CALLS
    )
    try:
        _bind(server, directory, socket)
        await server.start()
        made = _publish(directory, socket)
        try:
            yield
        finally:
            _remove(directory, socket.name, made)
    finally:
        await server.stop(grace=None)
        os.close(directory)


def make_directory(path: Path) -> None:
    """Make it where it is missing, with mode 0750. Raises SocketRefused. Blocks on the disk."""
    try:
        try:
            path.mkdir(mode=0o750)
        except OSError:  # not only FileExistsError: of one that is there on a read-only file system
            if not path.is_dir():
                raise
        directory = _open(path)
        try:
            os.fchmod(directory, 0o750)
        finally:
            os.close(directory)
    except OSError as error:
        raise _cannot("made", path, error) from error


def _open(path: Path) -> int:
    """The directory, in which only root and this process' user can change anything."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError as error:
        raise _cannot("used", path, error) from error
    try:
        _check(os.fstat(descriptor), path)
    except SocketRefused:
        os.close(descriptor)
        raise
    return descriptor


def _check(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in {0, os.geteuid()}:
        raise SocketRefused(
            f"{path} belongs to user {found.st_uid}", remedy="see who made it, and remove it"
        )
    if found.st_mode & stat.S_IWOTH:
        raise SocketRefused(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):o})",
            remedy=f"chmod o-w {path}",
        )


def _bind(server: grpc.aio.Server, directory: int, socket: Path) -> None:
    try:
        server.add_insecure_port(f"unix:/proc/self/fd/{directory}/{_HIDDEN}")
    except RuntimeError as error:  # which does not say why
        raise SocketRefused(
            f"no socket can be made in {socket.parent}",
            remedy="see whether the agent can write that directory, and its file system has room",
        ) from error


def _publish(directory: int, socket: Path) -> os.stat_result:
    """Give the bound socket its name, in place of one that was left; returns which file it is."""
    try:
        os.chmod(_HIDDEN, 0o600, dir_fd=directory)
        made = os.lstat(_HIDDEN, dir_fd=directory)
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(socket.name, dir_fd=directory).st_mode):
                raise SocketRefused(
                    f"{socket} is no socket", remedy="see who made it, and remove it"
                )
        os.rename(_HIDDEN, socket.name, src_dir_fd=directory, dst_dir_fd=directory)
        return made
    except OSError as error:
        raise _cannot("made", socket, error) from error


def _remove(directory: int, name: str, made: os.stat_result) -> None:
    """Remove our socket, unless another replaced it."""
    with suppress(OSError):
        if os.path.samestat(os.lstat(name, dir_fd=directory), made):
            os.unlink(name, dir_fd=directory)


def _cannot(what: str, path: Path, error: OSError) -> SocketRefused:
    if path.is_symlink():
        return SocketRefused(f"{path} is a symlink", remedy="remove it, or set kubelet.dir")
    return SocketRefused(
        f"{path} cannot be {what}: {error.strerror}",
        remedy="is kubelet.dir the kubelet's root directory, and mounted at the same path?",
    )
