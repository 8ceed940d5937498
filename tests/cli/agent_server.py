"""A server that answers as the agent does, for commands that only ask it."""

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_USER = {"namespace": "ml", "name": "job-1", "container": "c"}
STATUS: dict[str, Any] = {
    "node": "gpu-node-0", "phase": "Blocked", "digest": "sha256:0123456789abcdef",
    "source": "file", "observedAt": "2026-01-02T03:04:05.678Z",
    "gpus": [
        {
            "index": 0, "uuid": "GPU-0", "name": "NVIDIA H100 80GB HBM3",
            "pciBusId": "00000000:1A:00.0", "mig": {"current": "enabled", "pending": "enabled"},
            "slots": 8, "instances": [
                {
                    "uuid": "MIG-0", "profile": "3g.40gb", "start": 4, "size": 4, "gi": 2, "ci": 0,
                    "inUse": True, "users": [{"pid": 4711, "command": "train", "pod": _USER}],
                    "memory": {"used": 2 << 30, "total": 40 << 30},
                },
                {"profile": "1g.10gb", "start": 0, "size": 1, "gi": 9, "inUse": False},
            ],
            "free": {"slots": [1, 2, 3], "creatable": {"1g.10gb": 3, "2g.20gb": 1}},
            "health": {"status": "healthy", "findings": []},
        },
        {"index": 1, "uuid": "GPU-1", "health": {"status": "unhealthy", "findings": []}},
    ],
    "mps": [],
    "troubles": [{"severity": "warning", "text": "Something is in use.", "remedy": "End it."}],
    "problems": [{"code": "InUse", "message": "something is in use", "remedy": "end it"}],
}  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    answer: bytes = b""
    events: bytes | None = None  # as any other path
    status = 200
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        answer = self.answer
        if self.events is not None and self.path == "/v1/events?within=3600":
            answer = self.events
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return ""


class _UnixServer(socketserver.UnixStreamServer):
    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = super().get_request()
        return connection, ("", 0)


@contextmanager
def meeting(meet: Callable[[socket.socket], object], path: Path | None = None) -> Iterator[str]:
    """Another server: reads once, does this to the connection and closes it; gives `HOST:PORT`."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as listener:
        listener.bind(str(path) if path else ("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                meet(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield "" if path else f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@contextmanager
def answering(
    answer: bytes, *, path: Path | None = None, status: int = 200
) -> Iterator[tuple[str, type[_Handler]]]:
    """A server at a Unix socket or a TCP port; gives `HOST:PORT` and what it answers from."""
    handler = type("Handler", (_Handler,), {"answer": answer, "status": status, "paths": []})
    server: socketserver.BaseServer
    if path is not None:
        server, where = _UnixServer(str(path), handler), ""
    else:
        tcp = http.server.HTTPServer(("127.0.0.1", 0), handler)
        server, where = tcp, f"127.0.0.1:{tcp.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield where, handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
