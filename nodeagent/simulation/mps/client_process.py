"""The process of a simulated CUDA client: a light program, because tests start many.

Standard input takes `allocate BYTES`, `free BLOCK`, `fault` and `exit`, one a line; every line,
and the connection before them, is answered by one line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import select
import sys
from _socket import socket

from nodeagent.simulation.mps import protocol

_ENVIRONMENT = (
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_VISIBLE_DEVICES",
)


def main(arguments: list[str]) -> int:
    """With one argument it claims to be of that user. Returns the exit status."""
    try:
        server = protocol.connect(f"{protocol.pipe_directory()}/{protocol.CONTROL}")
    except OSError:
        _report({"mps": False})  # a CUDA program goes on without MPS then, and does not say so
        return _serve(None)
    environment = {k: os.environ[k] for k in _ENVIRONMENT if k in os.environ}
    hello: protocol.Message = {"hello": "client", "environment": environment}
    if arguments:
        hello["uid"] = int(arguments[0])
    protocol.send(server, hello)
    _report({"connected": True})
    answer = protocol.receive(server)  # waits where another user's server is in the way
    if answer is None or "error" in answer:
        _report(answer or {"error": 805})
        return 1
    _report({"mps": True, **answer["accepted"]})
    return _serve(server)


def _serve(server: socket | None) -> int:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if server is not None:
        poll.register(server.fileno(), select.POLLIN)
    rest = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if server is not None and server.fileno() in ready:
            _report(protocol.receive(server) or {"error": 806})  # terminated, or the server died
            return 1
        block = os.read(0, 4096)
        if not block:
            return 0
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "exit":
                return 0
            _report(_ask(server, word, number))


def _ask(server: socket | None, word: str, number: str) -> protocol.Message:
    if server is None:  # nothing limits it, so nothing is counted
        return {"block": 0, "used": 0}
    try:
        protocol.send(server, {word: int(number or 0)})
        return {"faulted": True} if word == "fault" else protocol.receive(server) or {"error": 806}
    except OSError:
        return {"error": 806}


def _report(message: protocol.Message) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
