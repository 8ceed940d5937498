"""Keeps the agent's part of `status.devices` of this node's claims; sends only the difference.

By server-side apply, so that other drivers' devices of a claim stay theirs. Where the agent may not
write it, that is logged once, and tried again every hour: claims are served without it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.claims.reporting.device_status import DeviceStatus, entries, read_shown
from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import (
    ClusterFault,
    NotAllowed,
    ObjectMissing,
    RequestRefused,
    WriteConflict,
)
from nodeagent.cluster.client.node_view import time_text

log = structlog.get_logger(__name__)

_DENIED_AGAIN: Final = 3600.0  # seconds; rights may be mended


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """What one claim's status should have."""

    namespace: str
    name: str
    uid: str
    devices: tuple[DeviceStatus, ...]


class ClaimStatusPublisher:
    """Publishes while `run` runs; `publish` sets what. `retry` are the seconds of the first and the
    longest pause after a failure, `wall` is the time of day in UTC.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        retry: tuple[float, float] = (0.5, 30.0),
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._backoff = Backoff(*retry, spread=1.0, jitter=jitter)
        self._wall = wall
        self._wanted: Mapping[str, ClaimStatus] = {}
        self._written: dict[str, ClaimStatus] = {}
        self._changed = asyncio.Event()
        self._is_denied = False

    def publish(self, claims: Iterable[ClaimStatus]) -> None:
        """These are the claims now; of others nothing is written any more."""
        self._wanted = {one.uid: one for one in claims}
        self._written = {u: one for u, one in self._written.items() if u in self._wanted}
        if self._written != self._wanted:
            self._changed.set()

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            pause = await self._write_all()
            if pause:
                await asyncio.sleep(pause)
                self._changed.set()

    async def _write_all(self) -> float:
        """Seconds until what failed is tried again, 0 where nothing did."""
        for uid, wanted in tuple(self._wanted.items()):
            if self._written.get(uid) == wanted:
                continue
            try:
                await self._write(wanted)
            except NotAllowed as fault:
                if not self._is_denied:
                    log.warning("status.devices of claims is not written", error=fault.message)
                self._is_denied = True
                return _DENIED_AGAIN
            except (ObjectMissing, WriteConflict):  # deleted, or another one of its name
                log.debug("the claim is gone", claim=f"{wanted.namespace}/{wanted.name}")
            except RequestRefused as fault:  # deallocated meanwhile, say
                log.warning("a claim's status is not written", error=fault.message)
            except ClusterFault as fault:
                return self._backoff.next(fault.retry_after or 0.0)
            self._backoff.reset()
            self._written[uid] = wanted
        self._is_denied = False
        return 0.0

    async def _write(self, wanted: ClaimStatus) -> None:
        namespace, name = wanted.namespace, wanted.name
        found = await self._access.find(requests.get_claim(namespace, name))
        shown = await asyncio.to_thread(read_shown, found)
        if shown is None or shown.uid != wanted.uid:
            return
        there = {key: status for key, (status, _) in shown.devices.items()}
        if there == {one.key: one for one in wanted.devices}:
            return
        devices = entries(wanted.devices, shown.devices, time_text(self._wall()))
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": wanted.uid},
            "status": {"devices": devices},
        }
        await self._access.send(requests.apply_claim_devices(namespace, name, body))
