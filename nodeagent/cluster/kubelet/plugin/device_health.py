"""The health of devices as reported to the kubelet, and when it is sent. In one event loop.

The kubelet shows a device of a pod as Unknown after 30 s without a message, so the list is sent
again well before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Final

from nodeagent.claims.reporting.device_health import DeviceHealth

HEARTBEAT: Final = 10.0  # seconds


class HealthFeed:
    """The newest list of all devices, for any number of watchers.

    `heartbeat`: seconds without a change after which a watcher gets the list again.
    """

    def __init__(self, *, heartbeat: float = HEARTBEAT) -> None:
        self._heartbeat = heartbeat
        self._devices: tuple[DeviceHealth, ...] = ()
        self._watchers: set[asyncio.Event] = set()

    def publish(self, devices: Iterable[DeviceHealth]) -> None:
        """Make this the list; every device that is missing in it counts as Unknown in the end."""
        before, self._devices = self._devices, tuple(devices)
        if self._devices != before:
            for changed in self._watchers:
                changed.set()

    async def watch(self) -> AsyncGenerator[tuple[DeviceHealth, ...], None]:
        """The list, then again at each change and each heartbeat.

        A watcher that takes its time misses lists between, never the newest, and holds up no other.
        """
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield self._devices
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._heartbeat):
                        await changed.wait()
        finally:
            self._watchers.discard(changed)
