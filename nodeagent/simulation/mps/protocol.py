"""How the stand-ins speak with each other: JSON messages on SOCK_SEQPACKET sockets.

The real protocol is private and not to be spoken; this one has only the sockets' names,
types and modes in common with it.
"""

from __future__ import annotations

import os
import struct

# The C parts of the modules json and socket: to import the rest of them takes half of a front-end's
# time, and a daemon's health is asked for by one front-end after the other.
from _json import encode_basestring_ascii, make_scanner
from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SO_PEERCRED,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socket,
)

TYPE_CHECKING = False  # as type checkers know it; the module `typing` takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

CONTROL = "control"
PRIVILEGED = "control_privileged"
MAX_PATH = 106  # bytes that the real daemon accepts; the kernel would take one more
_DEFAULT_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - where the real programs meet
_MAX_MESSAGE = 1 << 17
_ONE_DESCRIPTOR = CMSG_SPACE(4)


class _AsJsonReads:
    """The default options of `json.loads`."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int, parse_constant = float, int, float


_scan = make_scanner(_AsJsonReads)  # type: ignore[arg-type]  # it takes whatever has these


def pipe_directory() -> str:
    """Where this process looks for a daemon, or is one."""
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_DIRECTORY


def connect(path: str) -> socket:
    """A connection to a stand-in's socket; raises OSError."""
    connection = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def send(connection: socket, message: Message, *descriptors: int) -> None:
    """Raises OSError when the other side is gone."""
    import json  # a front-end has `ask`

    data = json.dumps(message).encode()
    if descriptors:
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        connection.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, rights)], MSG_NOSIGNAL)
    else:
        connection.send(data, MSG_NOSIGNAL)


def ask(connection: socket, word: str, text: str) -> Message | None:
    """Send a message of one text, and wait for the answer, None when the other side is gone.

    Raises OSError as `send` and `receive_with_descriptor` do.
    """
    connection.send(f'{{"{word}": {encode_basestring_ascii(text)}}}'.encode(), MSG_NOSIGNAL)
    return receive_with_descriptor(connection)[0]


def try_send(connection: socket, message: Message, *descriptors: int) -> bool:
    """Whether the other side is still there to be sent something."""
    try:
        send(connection, message, *descriptors)
    except OSError:
        return False
    return True


def receive(connection: socket) -> Message | None:
    """The next message, None when the other side is gone."""
    try:
        return receive_with_descriptor(connection)[0]
    except ConnectionError:
        return None


def receive_with_descriptor(connection: socket) -> tuple[Message | None, int]:
    """The same with the descriptor that came along, -1 for none.

    Raises ConnectionError when the other side has gone without reading what it was sent.
    """
    data, extra, _, _ = connection.recvmsg(_MAX_MESSAGE, _ONE_DESCRIPTOR)
    rights = [sent for level, kind, sent in extra if (level, kind) == (SOL_SOCKET, SCM_RIGHTS)]
    descriptor = struct.unpack_from("i", rights[0])[0] if rights else -1
    try:
        message, _ = _scan(data.decode(), 0)
    except (ValueError, StopIteration):  # the latter where nothing is
        message = None
    return (message if isinstance(message, dict) else None), descriptor


def peer(connection: socket) -> tuple[int, int]:
    """Process id (0 from another pid namespace) and user id of the other side."""
    data = connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
