"""Sockets of gRPC servers in the kubelet's folders.

A socket is bound under a hidden name, which the kubelet passes over. Once it is served and only
root can use it, it is renamed, and so replaces one of an earlier agent in one step. Everything is
done in the opened directory, so no symlink can lead it elsewhere. A socket that is deleted, as when
the kubelet's folders are cleared, is made again.
"""

import asyncio
import fnmatch
import os
import socket as sockets
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import structlog

from nodeagent.files.open_directory import OpenDirectory, PathRefused, refusing
from nodeagent.files.watch import changes

log = structlog.get_logger(__name__)

MAX_PATH: Final = 107  # bytes that a Unix socket's address holds
MAX_REQUEST: Final = 256 << 10  # bytes
MAX_CALLS: Final = 512  # at once; some for each pod that starts or ends
_HIDDEN: Final = ".nodeagent"
_RETRY: Final = 5.0  # seconds until a deleted socket that could not be made again is tried again
_OPTIONS: Final = [("grpc.max_receive_message_length", MAX_REQUEST)]


def check_path(socket: Path) -> None:
    """Raises PathRefused for a path that no client could connect to."""
    if not socket.is_absolute() or ".." in socket.parts:
        raise PathRefused.of("socketPath", socket=socket)
    if len(os.fsencode(socket)) > MAX_PATH:
        raise PathRefused.of(
            "socketPathLong", socket=socket, bytes=len(os.fsencode(socket)), most=MAX_PATH
        )


@asynccontextmanager
async def serve(
    socket: Path, handlers: Sequence[grpc.GenericRpcHandler], *, own_directory: bool = False
) -> AsyncIterator[None]:
    """Serve at this path, also when the socket is deleted meanwhile. In the end the socket goes
    first, then calls under way are cancelled.

    Its directory is the kubelet's, or with `own_directory` one in it that is made here. Raises
    PathRefused when the socket cannot be made there.
    """
    serving = AsyncExitStack()

    async def bind() -> None:
        """Serve at the path, then stop the server that did before."""
        nonlocal serving
        if own_directory:
            await asyncio.to_thread(make_directory, socket.parent)
        server = AsyncExitStack()
        await server.enter_async_context(_bound(socket, handlers))
        before, serving = serving, server
        await before.aclose()

    async def keep() -> None:
        """Make a deleted socket again; what another agent put in its place is left alone."""
        async for _ in changes(socket):
            while not os.path.lexists(socket):  # noqa: ASYNC240  # quick
                try:
                    await bind()
                    log.warning("a socket was deleted, and is created again", socket=str(socket))
                except PathRefused as error:
                    log.warning("a deleted socket cannot be created again", error=error.message)
                    await asyncio.sleep(_RETRY)

    await bind()
    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await serving.aclose()


@asynccontextmanager
async def _bound(socket: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> AsyncIterator[None]:
    """Serve at this path inside the context."""
    with _opened(socket.parent) as directory:
        server = grpc.aio.server(
            handlers=handlers, options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS
        )
        try:
            _bind_hidden(server, directory, socket)
            await server.start()
            made = _publish(directory, socket)
            try:
                yield
            finally:
                _remove(directory, socket.name, made)
        finally:
            await server.stop(grace=None)


def make_directory(path: Path) -> None:
    """Make a missing directory, with mode 0750. Raises PathRefused. Blocks on the disk."""
    with refusing("made", path, "kubelet"):
        try:
            path.mkdir(mode=0o750)
        except OSError:  # not only FileExistsError, if it is there on a read-only file system
            if not path.is_dir():
                raise
        with _opened(path) as directory:
            os.fchmod(directory, 0o750)


def remove_dead(directory: Path, pattern: str) -> None:
    """Remove the sockets of these names that no process serves, as a killed agent leaves them.

    Raises PathRefused. Blocks on the disk.
    """
    with _opened(directory) as opened, refusing("read", directory, "kubelet"):
        for name, is_served in _sockets(opened, pattern):
            if not is_served:
                with suppress(OSError):
                    os.unlink(name, dir_fd=opened)


def served(directory: Path, pattern: str) -> list[str]:
    """The names of those that a process serves, as far as is known. Raises PathRefused. Blocks."""
    with _opened(directory) as opened, refusing("read", directory, "kubelet"):
        return [name for name, is_served in _sockets(opened, pattern) if is_served]


def _sockets(directory: int, pattern: str) -> Iterator[tuple[str, bool]]:
    """The sockets of these names, and whether they are served."""
    for name in fnmatch.filter(os.listdir(directory), pattern):
        with sockets.socket(sockets.AF_UNIX) as client:
            client.setblocking(False)
            try:
                client.connect(f"/proc/self/fd/{directory}/{name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                yield name, not isinstance(error, ConnectionRefusedError)
            else:
                yield name, True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The directory, in which only root and this process' user and group can change anything."""
    with OpenDirectory.opened(path, make=False, use="kubelet") as directory:
        yield directory.descriptor


def _bind_hidden(server: grpc.aio.Server, directory: int, socket: Path) -> None:
    try:
        server.add_insecure_port(f"unix:/proc/self/fd/{directory}/{_HIDDEN}")
    except RuntimeError as error:  # which does not say why
        raise PathRefused.of("noSocket", folder=socket.parent) from error


def _publish(directory: int, socket: Path) -> os.stat_result:
    """Give the bound socket its name, in place of one that was left; returns its status."""
    with refusing("made", socket, "kubelet"):
        os.chmod(_HIDDEN, 0o600, dir_fd=directory)
        made = os.lstat(_HIDDEN, dir_fd=directory)
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(socket.name, dir_fd=directory).st_mode):
                raise PathRefused.of("foreignSocket", path=socket)
        os.rename(_HIDDEN, socket.name, src_dir_fd=directory, dst_dir_fd=directory)
    return made


def _remove(directory: int, name: str, made: os.stat_result) -> None:
    """Remove our socket, unless another replaced it."""
    with suppress(OSError):
        if os.path.samestat(os.lstat(name, dir_fd=directory), made):
            os.unlink(name, dir_fd=directory)
