"""How the stand-ins speak with each other: JSON messages on SOCK_SEQPACKET sockets.

The real protocol is private and not to be spoken; this one has only the sockets' names,
types and modes in common with it.
"""

from __future__ import annotations

import json
import os
import socket
import struct

TYPE_CHECKING = False  # as type checkers know it; the module `typing` takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

CONTROL = "control"
PRIVILEGED = "control_privileged"
LONGEST_PATH = 106  # bytes that the real daemon accepts; the kernel would take one more
_LARGEST = 1 << 17
_DEFAULT_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - where the real programs meet


def pipe_directory() -> str:
    """Where this process looks for a daemon, or is one."""
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_DIRECTORY


def connect(path: str) -> socket.socket:
    """A connection to a stand-in's socket; raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def send(connection: socket.socket, message: Message, *descriptors: int) -> None:
    """Raises OSError when the other side is gone."""
    data = json.dumps(message).encode()
    if descriptors:
        socket.send_fds(connection, [data], list(descriptors), socket.MSG_NOSIGNAL)
    else:
        connection.send(data, socket.MSG_NOSIGNAL)


def try_send(connection: socket.socket, message: Message, *descriptors: int) -> bool:
    """Whether the other side is still there to be sent something."""
    try:
        send(connection, message, *descriptors)
    except OSError:
        return False
    return True


def receive(connection: socket.socket) -> Message | None:
    """The next message, None when the other side is gone."""
    try:
        return receive_with_descriptor(connection)[0]
    except ConnectionError:
        return None


def receive_with_descriptor(connection: socket.socket) -> tuple[Message | None, int]:
    """The same with the descriptor that came along, -1 for none.

    Raises ConnectionError when the other side has gone without reading what it was sent.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, 1)
    descriptor = descriptors[0] if descriptors else -1
    try:
        message = json.loads(data) if data else None
    except ValueError:
        message = None
    return (message if isinstance(message, dict) else None), descriptor


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id (0 from another pid namespace) and user id of the other side."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
