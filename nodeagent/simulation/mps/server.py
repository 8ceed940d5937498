"""The stand-in for `nvidia-cuda-mps-server`: serves the clients of one user on one device.

Where its daemon's socket cannot be reached, as when a folder above it is closed to its user, it
ends with status 0 and no word, as the real one does.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from _socket import socket

from nodeagent.simulation.mps import processes, protocol
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import Log
from nodeagent.simulation.mps.served_client import ServedClient
from nodeagent.simulation.mps.versions import VERSIONS, Version

SERVER_NOT_READY = 807
MAX_CLIENTS_REACHED = 808
CLIENT_TERMINATED = 810
_TICK = 0.05  # seconds between looks at knobs
_INITIALISING = 0.02  # seconds, unless a knob says otherwise


def main(*, version: str, installation: str) -> int:
    """Returns the exit status."""
    if sys.argv[1:]:
        print("nvidia-cuda-mps-server is launched by nvidia-cuda-mps-control. (simulated)")
        return 0
    knobs = Watched(installation, protocol.pipe_directory())
    knobs.look()
    processes.become("nvidia-cuda-mps-server")
    if (status := knobs.get("server_exit")) is not None:
        return int(status)
    try:
        control = protocol.connect(f"{protocol.pipe_directory()}/{protocol.CONTROL}")
        protocol.send(control, {"hello": "server"})
        welcome, descriptor = protocol.receive_with_descriptor(control)
    except OSError:
        return 0
    if welcome is None:
        return 0
    log = Log(descriptor, "Other")
    return MpsServer(VERSIONS[version], control, welcome, log=log, knobs=knobs).run()


class MpsServer:
    """Serves until it is asked to leave or gets SIGINT."""

    def __init__(
        self,
        version: Version,
        control: socket,
        welcome: protocol.Message,
        *,
        log: Log,
        knobs: Watched,
    ) -> None:
        self._version = version
        self._control: socket | None = control
        self._settings: protocol.Message = welcome["settings"]
        self._log = log
        self._knobs = knobs
        self._clients: dict[int, ServedClient] = {}  # by descriptor
        self._state = "INITIALIZING"
        self._leaves = False
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        self._devices = tuple(name.strip() for name in visible.split(",") if name.strip())
        self._listen_to_signals()

    def run(self) -> int:
        if not self._initialise():
            return 1
        while not self._leaves:
            self._turn()
        self._log("Server exit")
        return 0

    # --- life -------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupted)
        self._set_deafness()

    def _interrupted(self, *_: object) -> None:
        self._leaves = not self._knobs.get("server_deaf")
        if self._leaves and self._state == "INITIALIZING":
            os._exit(0)

    def _set_deafness(self) -> None:
        handler = signal.SIG_IGN if self._knobs.get("server_deaf") else signal.SIG_DFL
        if signal.getsignal(signal.SIGTERM) != handler:
            signal.signal(signal.SIGTERM, handler)

    def _initialise(self) -> bool:
        log = self._log
        log("Startup")
        if self._version.new_server_lines:
            number = self._version.binary_version
            log(f"CUDA MPS Server for Linux/Unix. Binary version: {number}")
        log(f"Connecting to control daemon on socket: {protocol.pipe_directory()}/control")
        log("Initializing server process")
        begun = time.monotonic()
        while not self._knobs.now("server_die"):
            slow = float(self._knobs.get("server_slow", _INITIALISING))  # may be turned meanwhile
            left = begun + slow - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(_TICK, left))
            self._knobs.look()
        if self._knobs.get("no_gpu") or self._devices in ((), ("-1",)):
            log("Driver initialization failed with: no CUDA-capable device is detected")
            log("Failed to start : no CUDA-capable device is detected")
            return False
        for ordinal, name in enumerate(self._devices):
            log(f"Creating server context on device {ordinal} ({name})")
        if self._version.new_server_lines:
            log(f"Created anonymous shared memory region mps.shm.{os.getuid()}.{os.getpid()}")
        else:
            log("Created named shared memory region")
        self._log_settings()
        log("Server has started")
        self._become("ACTIVE")
        return True

    def _log_settings(self) -> None:
        self._log(f"Active Threads Percentage set to {self._settings['percentage']:.1f}")
        for device, size in self._settings["limits"]:
            self._log(f"Device pinned memory limit for device {device} set to {size:#x} bytes")

    def _become(self, state: str) -> None:
        self._state = state
        self._report({"state": state})

    def _report(self, message: protocol.Message) -> None:
        """To the daemon, which may be dead: then this server serves on as an orphan."""
        if self._control is not None:
            protocol.try_send(self._control, message)

    # --- one turn ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        poll = select.poll()
        control = -1 if self._control is None else self._control.fileno()
        for descriptor in (self._wake, control, *self._clients):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(_TICK * 1000)]
        self._act_on_knobs()
        for descriptor in ready:
            if descriptor == self._wake:
                os.read(self._wake, 512)
            elif descriptor in self._clients:
                self._serve(self._clients[descriptor])
            elif self._control is not None and descriptor == control:
                self._receive(self._control)

    def _receive(self, control: socket) -> None:
        try:
            message, descriptor = protocol.receive_with_descriptor(control)
        except ConnectionError:
            message, descriptor = None, -1
        if message is None:
            control.close()
            self._control = None
        elif "client" in message and descriptor >= 0:
            self._take(socket(fileno=descriptor), message)
        elif "terminate" in message:
            self._terminate(int(message["terminate"]))
        elif "settings" in message:
            self._settings = message["settings"]
            self._log_settings()
        elif "leave" in message:
            self._leaves = not self._clients

    # --- clients ----------------------------------------------------------------------------------

    def _take(self, connection: socket, message: protocol.Message) -> None:
        pid = int(message["client"])
        if self._version.new_server_lines:
            self._log(f"Received new client request for {{PID: {pid}, Context ID: 0}}")
        else:
            self._log("Received new client request")
        refusal = self._refusal()
        client = ServedClient(
            connection,
            pid=pid,
            hello=message["hello"],
            settings=self._settings,
            devices=self._devices,
        )
        if refusal:
            client.send({"error": refusal})
            connection.close()
            self._report_clients()
            return
        self._log("Worker created")
        self._log("Creating worker thread")
        self._clients[connection.fileno()] = client
        client.send({"accepted": client.terms()})
        self._log(f"Status of client {{{pid}, 0}} is ACTIVE")
        self._report_clients()

    def _refusal(self) -> int:
        if self._state != "ACTIVE":
            return SERVER_NOT_READY
        if len(self._clients) >= self._version.contexts:
            most = self._version.contexts
            self._log(f"Failed to accept new client. Maximum number of clients ({most}) reached.")
            return MAX_CLIENTS_REACHED
        return 0

    def _serve(self, client: ServedClient) -> None:
        message = protocol.receive(client.connection)
        if message is None:
            self._log("Receive command failed, assuming client exit")
            self._drop(client)
        elif "fault" in message:
            self._fault(client)
        else:
            client.send(client.answer(message, sticky=self._state == "FAULT"))

    def _drop(self, client: ServedClient) -> None:
        del self._clients[client.connection.fileno()]
        client.connection.close()
        self._log("Client process disconnected")
        self._log(f"Client disconnected. Number of active client contexts is {len(self._clients)}")
        self._log(f"Client {{{client.pid}, 0}} exit")
        self._report_clients()
        self._recover()

    def _report_clients(self) -> None:
        self._report({"clients": [client.row() for client in self._clients.values()]})

    def _terminate(self, pid: int) -> None:
        code = int(self._knobs.get("terminate_code", 0))
        if code == 0:
            for client in [c for c in self._clients.values() if c.pid == pid]:
                client.send({"error": CLIENT_TERMINATED})
                self._drop(client)
        if code >= 0:
            self._report({"terminated": pid, "code": code})

    # --- faults -----------------------------------------------------------------------------------

    def _fault(self, culprit: ServedClient | None) -> None:
        if self._state == "FAULT":
            return
        if culprit is not None:
            self._log(f"Client process {culprit.pid} encountered a fatal GPU error.")
        self._log("Server is handling a fatal GPU error.")
        self._log("The following devices will be reset:")
        for ordinal in range(len(self._devices)):
            self._log(str(ordinal))
        self._log("The following clients have a sticky error set:")
        for client in self._clients.values():
            self._log(f"{client.pid}")
            self._log(f"Status of client {{{client.pid}, 0}} is INACTIVE")
        self._become("FAULT")
        self._recover()

    def _recover(self) -> None:
        """Once no client is left, the contexts are made anew."""
        if self._state != "FAULT" or self._clients or self._knobs.get("fault") == "hold":
            return
        for ordinal, name in enumerate(self._devices):
            self._log(f"Destroy server context on device {ordinal}")
            self._log(f"Creating server context on device {ordinal} ({name})")
        self._become("ACTIVE")

    def _act_on_knobs(self) -> None:
        self._knobs.look()
        if self._knobs.now("server_die"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._set_deafness()
        while self._knobs.get("server_hang"):
            time.sleep(_TICK)
            self._knobs.look()
        if self._knobs.now("fault"):
            self._fault(None)
        self._recover()
