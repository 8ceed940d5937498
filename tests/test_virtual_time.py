"""What virtual time waits for before it passes."""

from __future__ import annotations

import socket

from tests.virtual_time import is_under_way


def test_what_has_arrived_is_not_under_way() -> None:
    """Also while it is not read yet, and while there is no room for more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with one, other:
            one.sendall(b"x" * 1000)
            other.recv(1, socket.MSG_WAITALL | socket.MSG_PEEK)
            ends = [server.fileno(), one.fileno(), other.fileno(), 0]
            assert not is_under_way(ends)
            assert not is_under_way(ends[:2])  # the other end is another program's


def test_a_connection_that_is_not_answered_is_under_way() -> None:
    """A server that has as many as it takes answers no more."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        assert is_under_way(client.fileno() for client in clients)
        for client in clients:
            client.close()
