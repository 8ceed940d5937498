"""Simulated CUDA programs under MPS: they connect, allocate, exceed their limit, and go.

    with SimulatedClient(pipe_directory, uid=1000, environment={...}) as client:
        client.wait_until_accepted()
        client.allocate(1 << 30)

Each is a process of its own with the environment a real one would have. On a simulated node it
also stands in NVML's list of MPS processes, with what it has allocated, and its server in that of
compute processes, as on a card. A program that found no MPS is a compute process itself, and the
device's compute mode may keep it out.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nodeagent.errors import NodeagentError, UsageError

if TYPE_CHECKING:
    from nodeagent.simulation.node import SimulatedNode

_PACKAGES = Path(__file__).parents[3]
OUT_OF_MEMORY = 2
DEVICES_UNAVAILABLE = 46  # cudaErrorDevicesUnavailable: the compute mode is in the way
_SERVER_MEMORY = 30 << 20  # bytes; about what a server holds for itself


class ClientError(NodeagentError):
    """A call of the simulated client failed; `code` is CUDA's."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class SimulatedClient:
    """One client process, started at once; closing it ends it as a program ends.

    `uid` is whose it is: as root it really runs as that user, otherwise it only says so. `state`
    and `device` are the file of a simulated node and a device as `SimulatedNode.occupy` names it;
    `beside`: further ones on which it has a context, without memory. `python` runs the process, in
    case another user cannot run this interpreter.
    """

    def __init__(
        self,
        pipe_directory: Path,
        *,
        uid: int | None = None,
        environment: Mapping[str, str] | None = None,
        state: Path | None = None,
        device: str | int = 0,
        beside: Sequence[str | int] = (),
        python: Path | None = None,
    ) -> None:
        self._state, self._devices = state, (device, *beside)
        self._registered = False
        self._used = 0
        self._answers = b""
        self.terms: dict[str, Any] = {}
        really = uid is not None and uid != os.geteuid() and os.geteuid() == 0
        claim = [] if uid is None or really else [str(uid)]
        self.process = subprocess.Popen(
            [
                str(python or _interpreter(really=really)),
                "-IS",
                "-c",
                _START.format(root=str(_PACKAGES)),
                *claim,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory), **(environment or {})},
            start_new_session=True,
            user=uid if really else None,
            group=uid if really else None,
            extra_groups=() if really else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def wait_until_connected(self, timeout: float = 5.0) -> bool:
        """Wait for its connection to the daemon; whether there is MPS at all.

        Raises TimeoutError, and ClientError when it was refused.
        """
        return "connected" in self._answer(timeout)

    def wait_until_accepted(self, timeout: float = 5.0) -> dict[str, Any]:
        """Wait for the server; what it may use: `limit` in bytes or None, and `percentage`.

        Raises TimeoutError while it waits for another user's server to go, and ClientError, also
        where the compute mode of its simulated device keeps it out.
        """
        answer = self._answer(timeout)
        if "connected" in answer:
            answer = self._answer(timeout)
        self.terms = answer
        try:
            self._register()
        except UsageError as error:
            raise ClientError(error.message, code=DEVICES_UNAVAILABLE) from error
        return answer

    def allocate(self, size: int, timeout: float = 5.0) -> int:
        """Allocate bytes; the number to free them by. Raises ClientError, and TimeoutError."""
        answer = self._ask(f"allocate {size}", timeout)
        block, before = int(answer["block"]), self._used
        self._used = int(answer["used"])
        try:
            self._register()
        except UsageError as error:
            self._used = before
            self._register()
            self._ask(f"free {block}", timeout)
            raise ClientError(error.message, code=OUT_OF_MEMORY) from error
        return block

    def free(self, block: int, timeout: float = 5.0) -> None:
        """Raises ClientError and TimeoutError."""
        self._used = int(self._ask(f"free {block}", timeout)["used"])
        self._register()

    def fault(self, timeout: float = 5.0) -> None:
        """Do what a program does that reads where there is nothing."""
        self._ask("fault", timeout)

    def next_answer(self, timeout: float = 5.0) -> dict[str, Any]:
        """What it says by itself, as when it is terminated. Raises ClientError, TimeoutError."""
        return self._answer(timeout)

    def close(self) -> None:
        """End the process, if need be by force."""
        streams = (self.process.stdin, self.process.stdout)
        for stream in streams:
            if stream is not None:
                stream.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._unregister()

    # --- talking with the process -------------------------------------------------------------

    def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        assert self.process.stdin is not None  # noqa: S101 - asked for with PIPE
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said before it ended is the answer
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - asked for with PIPE
        descriptor, deadline = self.process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError(f"client {self.pid} has not answered for {timeout} s")
            block = os.read(descriptor, 4096)
            if not block:
                raise ClientError(f"client {self.pid} is gone", code=806)
            self._answers += block
        line, self._answers = self._answers.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            code = int(answer["error"])
            raise ClientError(f"client {self.pid} got CUDA error {code}", code=code)
        return answer

    # --- on the simulated node ------------------------------------------------------------------

    def _register(self) -> None:
        """Be in the node's list of processes, with the memory in use; raises UsageError."""
        if self._state is None:
            return
        from nodeagent.simulation import SimulatedNode  # boards and all that

        with SimulatedNode(state=self._state) as node, node.changes():
            for device in self._devices if self._registered else ():
                node.release(device, self.pid)
            self._registered = False
            for number, device in enumerate(self._devices):
                if server := self.terms.get("server"):
                    _register_server(node, device, server)
                node.occupy(
                    device,
                    self.pid,
                    command="simulated-client",
                    memory=0 if number else self._used,
                    kind="mps" if self.terms.get("mps") else "compute",
                    follow=True,
                )
            self._registered = True

    def _unregister(self) -> None:
        if self._state is None or not self._registered:
            return
        from nodeagent.simulation import SimulatedNode

        with SimulatedNode(state=self._state) as node:
            node.release(pid=self.pid)
        self._registered = False


def _register_server(node: SimulatedNode, device: str | int, pid: int) -> None:
    """The first client makes its server take the device, which it keeps until it ends."""
    from nodeagent.simulation.admission import MPS_SERVER

    card, instance, compute = node.find(device)
    if all(process.pid != pid for process in card.processes(instance, compute)):
        node.occupy(device, pid, command=MPS_SERVER, memory=_SERVER_MEMORY, follow=True)


_START = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from nodeagent.simulation.mps.client_process import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def _interpreter(*, really: bool) -> Path:
    from nodeagent.simulation.mps.installation import shared_interpreter

    return shared_interpreter() if really else Path(sys.executable)
