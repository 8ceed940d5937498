"""The stand-in for `nvidia-cuda-mps-control`, as its front-end: reads commands from standard input,
prints the daemon's replies.

As with the real program nothing appears before the end of the input when standard output is not
a terminal, and most mistakes end with status 0.
"""

from __future__ import annotations

import os
import sys

from nodeagent.simulation.mps import protocol

TYPE_CHECKING = False  # as type checkers know it; the module `typing` takes milliseconds
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterator

_BLOCK = 4096  # what C's standard output gathers before it writes


def main(*, version: str, installation: str) -> int:
    """Returns the exit status. `installation` is the folder that knobs are looked up in."""
    if len(sys.argv) == 1:
        return run()
    # The front-end is started for each question: it loads nothing that only a daemon needs.
    from nodeagent.simulation.mps import control_flags

    return control_flags.run(run, version=version, installation=installation)


def run() -> int:
    """Returns the exit status."""
    connection = _connection()
    if connection is None:
        return _complain("Cannot find MPS control daemon process")
    output = _Output()
    try:
        return _converse(connection, output, _lines())
    finally:
        output.flush()


def _connection() -> socket | None:
    """The owner and root come in by the owner's door."""
    directory = protocol.pipe_directory()
    for name in (protocol.PRIVILEGED, protocol.CONTROL):
        try:
            return protocol.connect(f"{directory}/{name}")
        except OSError:
            continue
    return None


def _converse(connection: socket, output: _Output, lines: Iterator[str]) -> int:
    try:
        answer = protocol.ask(connection, "hello", "ui")
        if answer is not None and "refused" in answer:  # another client is being served
            return _cannot_send() if answer["refused"] == "error" else 0
        status = None
        for line in lines:
            if status is not None:  # it has quit
                return _cannot_send()
            answer = protocol.ask(connection, "command", line)
            if answer is None:  # it died
                return 1
            output.write(str(answer.get("reply", "")))
            status = answer.get("exit")
    except ConnectionResetError:  # it died with the command unread: unnoticed
        return 0
    except OSError:
        return _cannot_send()
    return int(status or 0)


def _lines() -> Iterator[str]:
    """Lines of standard input as they come; the last may lack its end."""
    rest = b""
    while block := os.read(0, 1 << 16):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class _Output:
    def __init__(self) -> None:
        self._waiting = b""
        self._at_once = os.isatty(1)

    def write(self, text: str) -> None:
        self._waiting += text.encode()
        if self._at_once or len(self._waiting) >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[os.write(1, self._waiting) :]


def _cannot_send() -> int:
    return _complain("Cannot send command to MPS control daemon process")


def _complain(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1
