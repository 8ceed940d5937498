"""An agent's process among clients that mean harm: everyone else is served, and the log stays."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

from tests.agent.test_service import Process, agent, write_plan

SOON = 30.0  # seconds that anything may take on a busy machine
SLOW = b"POST /v1/plan/preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\na"


def test_slow_clients_keep_nobody_out(tmp_path: Path) -> None:
    """As many as there are connections, each in the middle of its body; then everyone else."""
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path) as process:
        process.until_phase("InSync")
        port = port_of(process)
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                with contextlib.suppress(OSError):  # it was ended for another already
                    slow.sendall(SLOW)
            for _ in range(10):
                assert asked(port, "/v1/status") == 200
                assert process.ask("/v1/status")[0] == 200
        assert process.end() == 0


def port_of(process: Process) -> int:
    """The API's TCP port, by the line that says where the node can be seen."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        for line in logged(process.said()):
            if "url" in line:
                return int(str(line["url"]).rsplit(":", 1)[1].strip("/"))
        time.sleep(0.01)
    raise AssertionError(process.said())


def logged(text: str) -> Iterator[dict[str, object]]:
    """The lines of a log, which begins after the words for people; each has to be an object."""
    complete = text.splitlines(keepends=True)
    log = dropwhile(lambda line: not line.startswith("{"), complete)
    for line in log:
        if line.endswith("\n"):
            found = json.loads(line)
            assert isinstance(found, dict)
            yield found


def asked(port: int, path: str) -> int:
    """The answer's status over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()
