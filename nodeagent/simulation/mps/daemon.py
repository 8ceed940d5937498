"""The control daemon's loop: one front-end at a time, servers, clients, signals and knobs."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from nodeagent.simulation.mps import protocol
from nodeagent.simulation.mps.commands import Caller, Commands, Quit, Wait
from nodeagent.simulation.mps.files import Files, log_directory, remove_tree
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.servers import Servers, Waiting
from nodeagent.simulation.mps.versions import Version

_TICK = 0.05  # seconds between looks at knobs and retries
_EMPTY_EVERY = 5  # of the front-ends that are refused one in so many sees no error


class Start(NamedTuple):
    """How the daemon is to run."""

    foreground: bool
    multiuser: bool


class _FrontEnd:
    def __init__(self, connection: socket.socket, caller: Caller) -> None:
        self.connection = connection
        self.caller = caller
        self.awaits: Wait | None = None


class Daemon:
    """Serves until `quit`; a signal ends it as it ends any program without handlers."""

    def __init__(
        self,
        version: Version,
        *,
        files: Files,
        log: Log,
        server_log: Log,
        knobs: Watched,
        start: Start,
    ) -> None:
        self._files = files
        self._log = log
        self._knobs = knobs
        self._servers = Servers(
            version, log=log, server_log=server_log, knobs=knobs, multiuser=start.multiuser
        )
        self._commands = Commands(self._servers, log=log, knobs=knobs)
        self._version = version
        self._front_end: _FrontEnd | None = None
        self._refused = 0
        self._unknown: dict[socket.socket, bool] = {}  # not yet said who they are
        self._deadline: float | None = None  # of a quit
        self._quits: int | None = None  # the exit status, once it is over
        self._began = time.monotonic()
        self._wake, wake = os.pipe()
        for descriptor in (self._wake, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        self._announce()

    def run(self) -> int:
        """Returns the exit status: that of the last server that failed."""
        while self._quits is None:
            self._turn()
        self._log(f"Exit with status {self._quits}")
        self._files.clean_up()
        if self._front_end is not None:
            status = self._quits if self._version.quit_tells_status else 0
            protocol.try_send(self._front_end.connection, {"exit": status})
        return self._quits

    # --- one turn -----------------------------------------------------------------------------

    def _turn(self) -> None:
        poll = select.poll()
        for descriptor in self._handlers():
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(_TICK * 1000)
        self._act_on_knobs()
        for descriptor, _ in ready:
            if handler := self._handlers().get(descriptor):  # another one may have closed it
                handler()
        self._reap()
        self._servers.go_on()
        self._try_to_quit()

    def _handlers(self) -> dict[int, Callable[[], object]]:
        """What is waited for, and what is done when it can be read."""
        handlers: dict[int, Callable[[], object]] = {self._wake: partial(os.read, self._wake, 512)}
        for listener in (self._files.control, self._files.privileged):
            handlers[listener.fileno()] = partial(self._accept, listener)
        for connection in self._unknown:
            handlers[connection.fileno()] = partial(self._greet, connection)
        if self._front_end is not None and self._front_end.awaits is None:
            front_end = self._front_end
            handlers[front_end.connection.fileno()] = partial(self._converse, front_end)
        server = self._servers.current
        if server is not None and server.connection is not None:
            handlers[server.connection.fileno()] = partial(self._receive, server.connection)
        for waiting in self._servers.queue:
            if waiting.connection is not None:
                handlers[waiting.connection.fileno()] = partial(
                    self._servers.gone, waiting.connection
                )
        return handlers

    # --- who connects ---------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        self._log("Accepting connection...")
        self._unknown[connection] = listener is self._files.privileged

    def _greet(self, connection: socket.socket) -> None:
        privileged = self._unknown.pop(connection)
        pid, uid = protocol.peer(connection)
        message = protocol.receive(connection) or {}
        match message.get("hello"):
            case "ui":
                self._sit_down(connection, Caller(uid, owner=privileged or uid == 0))
            case "server" if self._servers.connected(connection, pid):
                pass
            case "client":
                self._log("User did not send valid credentials")
                uid = int(message.get("uid", uid))
                self._servers.new_client(connection, Waiting(uid, pid, connection, message))
            case _:
                connection.close()

    def _sit_down(self, connection: socket.socket, caller: Caller) -> None:
        busy = self._knobs.get("busy")
        if self._front_end is None and not busy:
            self._log("NEW UI")
            self._front_end = _FrontEnd(connection, caller)
            protocol.try_send(connection, {"welcome": True})
            return
        self._refused += 1
        how = busy or ("error" if self._refused % _EMPTY_EVERY else "empty")
        protocol.try_send(connection, {"refused": how})
        connection.close()

    # --- the front-end --------------------------------------------------------------------------

    def _converse(self, front_end: _FrontEnd) -> None:
        message = protocol.receive(front_end.connection)
        if message is None:
            self._log("UI closed")
            front_end.connection.close()
            self._front_end = None
            return
        line = str(message.get("command", ""))
        self._log(f"Cmd:{line}")
        answer = self._commands.answer(line, front_end.caller)
        match answer:
            case str():
                self._reply(front_end, answer)
            case Wait():
                front_end.awaits = answer
            case Quit(timeout):
                self._begin_to_quit(timeout)

    def _reply(self, front_end: _FrontEnd, text: str) -> None:
        for line in text.splitlines():
            if line:
                self._log(line.rstrip())
        protocol.try_send(front_end.connection, {"reply": text})

    def _begin_to_quit(self, timeout: int | None) -> None:
        self._servers.closing = True
        if timeout is not None:
            self._log(f"quit command issued with timeout of {timeout}")
            self._deadline = time.monotonic() + timeout
        if self._servers.current is not None:
            self._servers.current.leaving = True
        self._servers.go_on()

    def _try_to_quit(self) -> None:
        if not self._servers.closing:
            return
        server = self._servers.current
        if server is None:
            self._quits = self._servers.status
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._servers.force(server)

    # --- servers ----------------------------------------------------------------------------------

    def _receive(self, connection: socket.socket) -> None:
        message = protocol.receive(connection)
        server = self._servers.current
        if message is None:
            if server is not None:
                server.connection = None  # its end will be reported by the kernel
            connection.close()
            return
        self._servers.received(message)
        front_end = self._front_end
        if "terminated" in message and front_end is not None and front_end.awaits is not None:
            self._end_wait(front_end, f"{message['code']}\n")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._servers.ended(pid, status)
            front_end = self._front_end
            awaits = front_end.awaits if front_end is not None else None
            if front_end is not None and awaits is not None and awaits.server.pid == pid:
                self._end_wait(front_end, "1\n")

    def _end_wait(self, front_end: _FrontEnd, reply: str) -> None:
        front_end.awaits = None
        self._reply(front_end, reply)

    # --- knobs ------------------------------------------------------------------------------------

    def _act_on_knobs(self) -> None:
        self._knobs.look()
        life = self._knobs.get("die_after")
        if self._knobs.now("die") or (life is not None and self._age() >= float(life)):
            os.kill(os.getpid(), signal.SIGKILL)
        self._set_deafness()
        while self._knobs.get("hang"):
            time.sleep(_TICK)
            self._knobs.look()
        if self._knobs.now("forget_limits"):
            self._servers.defaults.reset()
        if self._knobs.now("lose_pipes"):
            remove_tree(self._files.directory)
        if self._knobs.now("lose_logs"):
            remove_tree(log_directory())
        if stray := self._knobs.now("stray_client"):
            self._servers.new_client(None, Waiting(int(stray["uid"]), int(stray["pid"])))

    def _age(self) -> float:
        return time.monotonic() - self._began

    def _set_deafness(self) -> None:
        handler = signal.SIG_IGN if self._knobs.get("deaf") else signal.SIG_DFL
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)

    # --- the start --------------------------------------------------------------------------------

    def _announce(self) -> None:
        directory = self._files.directory
        if self._version.binary_version:
            self._log(f"CUDA MPS Control binary version: {self._version.binary_version}")
        self._log(f"Starting control daemon using socket {directory}/{protocol.CONTROL}")
        self._log(
            "To connect CUDA applications to this daemon, "
            f"set env CUDA_MPS_PIPE_DIRECTORY={directory}"
        )
        self._servers.defaults.take_environment(self._log)
