"""A client as its server sees it: what it may use, and what it has."""

from __future__ import annotations

import os
from _socket import socket

from nodeagent.simulation.mps import protocol
from nodeagent.simulation.mps.settings import client_limits, percentage

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
INVALID_VALUE = 1
STICKY = 700  # CUDA_ERROR_ILLEGAL_ADDRESS


class ServedClient:
    """What the server set when the client came holds for its life.

    The client's own environment can only lower it. Its limits count for the process, and for
    one device of the daemon: the first that the client sees, which it works on.
    """

    def __init__(
        self,
        connection: socket,
        *,
        pid: int,
        hello: protocol.Message,
        settings: protocol.Message,
        devices: tuple[str, ...],
    ) -> None:
        self.connection = connection
        self.pid = pid
        environment = hello.get("environment", {})
        sees = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        ordinal = devices.index(sees) if sees in devices else 0
        self._device = devices[ordinal] if devices else ""
        own = percentage(environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
        self._percentage = min(float(settings["percentage"]), own or 100.0)
        asked = environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        limits = [size for device, size in settings["limits"] if device == ordinal]
        limits += [s for d, s in client_limits(asked, devices).items() if d == ordinal]
        self._limit = min(limits, default=None)
        self._blocks: dict[int, int] = {}  # bytes by number
        self._serial = 0

    def terms(self) -> protocol.Message:
        """What the client gets when it is accepted; the limit in bytes, None for none.

        `server` is this process: a simulated node has to show it, and only the client knows both.
        """
        return {"limit": self._limit, "percentage": self._percentage, "server": os.getpid()}

    def row(self) -> protocol.Message:
        """What the daemon learns of it."""
        return {"pid": self.pid, "device": self._device[:22]}

    def send(self, message: protocol.Message) -> None:
        protocol.try_send(self.connection, message)

    def answer(self, message: protocol.Message, *, sticky: bool) -> protocol.Message:
        """To `allocate` (bytes) and `free` (a block's number)."""
        if sticky:
            return {"error": STICKY}
        if "allocate" in message:
            size = int(message["allocate"])
            used = sum(self._blocks.values())
            if size <= 0:
                return {"error": INVALID_VALUE}
            if self._limit is not None and used + size > self._limit:
                return {"error": OUT_OF_MEMORY}
            self._serial += 1
            self._blocks[self._serial] = size
            return {"block": self._serial, "used": used + size}
        if self._blocks.pop(message.get("free", 0), None) is None:
            return {"error": INVALID_VALUE}
        return {"used": sum(self._blocks.values())}
