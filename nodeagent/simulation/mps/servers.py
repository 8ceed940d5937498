"""The daemon's servers: one at a time, of one user; the users who wait for the next one."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import NamedTuple

from nodeagent.simulation.mps import protocol
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.settings import Settings
from nodeagent.simulation.mps.versions import Version

PROGRAM = "nvidia-cuda-mps-server"
CONNECTION_FAILED = 805
_TRIES = 6  # starts of a server that dies, before its client gets an error
_BACKOFF = (0.1, 1.6)  # seconds: first and longest wait before another try to end a server


class Server:
    """One server process. `clients` and `state` are what it last reported."""

    def __init__(self, pid: int, uid: int, settings: Settings) -> None:
        self.pid = pid
        self.uid = uid
        self.settings = settings
        self.connection: socket.socket | None = None
        self.state = "INITIALIZING"
        self.clients: list[protocol.Message] = []
        self.leaving = False
        self.asked_to_leave = False
        self.next_try = 0.0
        self.backoff = _BACKOFF[0]

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.state != "INITIALIZING"

    def send(self, message: protocol.Message, *descriptors: int) -> bool:
        """Whether it could be sent."""
        there = self.connection
        return there is not None and protocol.try_send(there, message, *descriptors)


class Waiting(NamedTuple):
    """A client that waits for a server of its user, or (without pid) a server asked for."""

    uid: int
    pid: int = 0
    connection: socket.socket | None = None
    hello: protocol.Message | None = None


class Servers:
    """The server there is, and who waits for the next."""

    def __init__(
        self, version: Version, *, log: Log, server_log: Log, knobs: Watched, multiuser: bool
    ) -> None:
        self.version = version
        self.defaults = Settings()
        self.current: Server | None = None
        self.queue: list[Waiting] = []
        self.status = 0  # the last bad exit status of a server
        self.closing = False
        self._log = log
        self._server_log = server_log
        self._knobs = knobs
        self._multiuser = multiuser
        self._failures = 0  # starts in a row of which none became ready

    # --- who comes ------------------------------------------------------------------------

    def request(self, uid: int) -> None:
        """`start_server`: at once, after the present one, or not at all."""
        uid = 0 if self._multiuser else uid
        if self.current is not None and self.current.uid == uid:
            return
        self.queue.append(Waiting(uid))
        self.go_on()

    def new_client(self, connection: socket.socket | None, client: Waiting) -> None:
        """A CUDA program has connected."""
        if self.closing:
            _refuse(connection)
            return
        server = self.current
        who = f"NEW CLIENT {client.pid} from user {client.uid}"
        if server is not None and self._serves(server, client):
            self._log(f"{who}: Server already exists")
            self._hand_over(client)
            return
        self._log(f"{who}: Server is not ready, push client to pending list")
        self.queue.append(client)
        self.go_on()

    def gone(self, connection: socket.socket) -> None:
        """A waiting client has given up."""
        self.queue = [w for w in self.queue if w.connection is not connection]
        connection.close()

    def connected(self, connection: socket.socket, pid: int) -> bool:
        """A server has connected; whether it is the one that was started."""
        server = self.current
        if server is None or server.pid != pid:
            self._log(f"NEW SERVER {pid}: Ignoring old connection request")
            return False
        server.connection = connection
        settings = server.settings.to_json()
        descriptor = self._server_log.descriptor
        descriptors = (descriptor,) if descriptor >= 0 else ()
        return server.send({"uid": server.uid, "settings": settings}, *descriptors)

    # --- what it reports --------------------------------------------------------------------

    def received(self, message: protocol.Message) -> None:
        """The current server has sent its state or its clients."""
        server = self.current
        if server is None:
            return
        if "clients" in message:
            server.clients = list(message["clients"])
            if server.leaving and not server.clients:
                server.next_try = 0.0
        if "state" in message:
            was, server.state = server.state, str(message["state"])
            if was == "INITIALIZING":
                self._failures = 0
                self._log(f"NEW SERVER {server.pid}: Ready")
                self._hand_over_all(server)
        self.go_on()

    def ended(self, pid: int, wait_status: int) -> None:
        """A child is gone. Death by a signal counts as status 0."""
        if self.current is None or self.current.pid != pid:
            return
        server, self.current = self.current, None
        status = os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else 0
        self.status = status or self.status
        self._log(f"Server {pid} exited with status {status}")
        self._log("Removed Shm file at ")
        if server.connection is not None:
            server.connection.close()
            server.connection = None
        if server.state == "INITIALIZING":
            self._failures += 1
        self.go_on()

    # --- what follows -----------------------------------------------------------------------

    def go_on(self) -> None:
        """Start the next server, or let the present one leave, where it is time to."""
        if self.closing:
            self._drop_all()
        server = self.current
        if server is None:
            self._start_next()
            return
        if any(self._server_user(w.uid) != server.uid for w in self.queue):
            server.leaving = True
        if server.leaving and not server.asked_to_leave and server.state != "INITIALIZING":
            self._try_to_end(server)

    def force(self, server: Server) -> None:
        """Ask by signal, once; a server that ignores it stays."""
        if self.version.names_forced_shutdown:
            self._log(f"Force shutting down server {server.pid}")
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGINT)

    def _try_to_end(self, server: Server) -> None:
        now = time.monotonic()
        if now < server.next_try:
            return
        self._log(f"Try shutting down server {server.pid}, backoff is enabled")
        if not server.clients:
            server.asked_to_leave = server.send({"leave": True})
            return
        self._log(
            f"Server {server.pid} has {len(server.clients)} active worker threads. "
            "Server will not shutdown."
        )
        wait = round(server.backoff * 1000)
        self._log(f"Control will try shutting down server {server.pid} again in at most {wait}ms")
        server.next_try = now + server.backoff
        server.backoff = min(server.backoff * 2, _BACKOFF[1])

    def _start_next(self) -> None:
        if not self.queue:
            return
        if self._failures >= _TRIES:
            self._failures = 0
            self._drop_all()
            return
        uid = self._server_user(self.queue[0].uid)
        wanted = [w for w in self.queue if w.pid == 0 and self._server_user(w.uid) == uid]
        self.queue = [w for w in self.queue if w not in wanted]
        self._start(uid)

    def _start(self, uid: int) -> None:
        run_as = int(self._knobs.get("server_uid", uid))
        pid = os.fork()
        if pid == 0:
            self._become_server(uid, run_as)
        if not self.version.starter_is_server:
            self._log(f"Starting new server {pid} for user {uid}")
        self.current = Server(pid, uid, self.defaults.copy())

    def _become_server(self, uid: int, run_as: int) -> None:
        """In the child: the group stays, all open files stay, PATH decides."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if self.version.starter_is_server:
                self._log(f"Starting new server {os.getpid()} for user {uid}", pid=os.getpid())
            if run_as != os.getuid():
                os.setuid(run_as)
            os.execvp(PROGRAM, [PROGRAM])  # noqa: S606 - as the real one does
        except OSError as error:
            if isinstance(error, PermissionError) and run_as != os.getuid():
                self._log(f"Failed to start server using uid {uid}. {error.strerror}")
        finally:
            os._exit(1)

    def _serves(self, server: Server, client: Waiting) -> bool:
        return server.is_ready and server.uid == self._server_user(client.uid)

    def _server_user(self, uid: int) -> int:
        return 0 if self._multiuser else uid

    def _hand_over_all(self, server: Server) -> None:
        ours = [w for w in self.queue if self._server_user(w.uid) == server.uid]
        self.queue = [w for w in self.queue if w not in ours]
        for client in ours:
            self._hand_over(client)

    def _hand_over(self, client: Waiting) -> None:
        """From here on the client talks with the server; its connection is the server's."""
        if client.connection is None or self.current is None:
            return
        message = {"client": client.pid, "uid": client.uid, "hello": client.hello or {}}
        if self.current.send(message, client.connection.fileno()):
            known: protocol.Message = {"pid": client.pid, "device": ""}
            self.current.clients.append(known)  # until it reports more
        client.connection.close()

    def _drop_all(self) -> None:
        for waiting in self.queue:
            _refuse(waiting.connection)
        self.queue.clear()


def _refuse(connection: socket.socket | None) -> None:
    if connection is None:
        return
    protocol.try_send(connection, {"error": CONNECTION_FAILED})
    connection.close()
