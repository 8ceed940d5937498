"""Notifies systemd of the service's state: ready, alive, stopping, and one line of status.

The protocol is one datagram to the Unix socket in NOTIFY_SOCKET (sd_notify(3)). Without that
variable nothing is sent. The variables are taken out of the environment, so that no child
process can speak in the agent's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

_WATCHDOG_INTERVAL = (
    5.0  # seconds between signs of life to systemd, unless it wants them more often
)


@dataclass(frozen=True, slots=True)
class Notifier:
    """Tells systemd about the agent, unless `address` is empty. `watchdog`: seconds within which
    systemd wants a sign of life, None when it wants none.
    """

    address: str = ""
    watchdog: float | None = None

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Read what systemd set, and remove it from `environment`."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        meant_for_us = pid in ("", str(os.getpid()))
        wanted = address and meant_for_us and microseconds.isdecimal() and int(microseconds)
        return cls(address, int(microseconds) / 1e6 if wanted else None)

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, line: str) -> None:
        self._send("STATUS=" + line.replace("\n", " "))

    async def keep_alive(self, overdue: Callable[[], tuple[str, ...]]) -> None:
        """Send signs of life until cancelled, as long as no loop is overdue."""
        if self.watchdog is None:
            return
        while True:
            if not overdue():
                self.alive()
            await asyncio.sleep(min(self.watchdog / 3, _WATCHDOG_INTERVAL))

    def _send(self, message: str) -> None:
        if not self.address:
            return
        # "@" stands for the NUL of Linux' abstract socket addresses.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        # systemd gone or its buffer full is no reason to stop working.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto(message.encode(), address)
