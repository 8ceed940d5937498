"""Keeps the agent's part of `status.devices` of this node's claims; sends only the difference.

By server-side apply, so that other drivers' devices of a claim stay theirs. Where the agent may not
write a claim's, that is logged once, and tried again every hour: claims are served without it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
        self._denied: dict[str, float] = {}  # by uid, until when in the loop's time
        self._changed = asyncio.Event()
        self._is_denied = False

    def publish(self, claims: Iterable[ClaimStatus]) -> None:
        """These are the claims now; of others nothing is written any more."""
        self._wanted = {one.uid: one for one in claims}
        self._written = {u: one for u, one in self._written.items() if u in self._wanted}
        self._denied = {u: until for u, until in self._denied.items() if u in self._wanted}
        if self._written != self._wanted:
            self._changed.set()

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        while True:
            self._changed.clear()
            try:
                again = await self._write_all()
            except ClusterFault as fault:  # of the server, so changes wait as well
                await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again):
                    await self._changed.wait()

    async def _write_all(self) -> float | None:
        """When the first of what was denied is tried again, in the loop's time; None: nothing was.

        Raises ClusterFault for what concerns all claims.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        for uid, wanted in tuple(self._wanted.items()):
            if self._written.get(uid) == wanted or self._denied.get(uid, begun) > begun:
                continue
            try:
                await self._write(wanted)
            except NotAllowed as fault:  # maybe of this claim alone
                if not self._is_denied:
                    log.warning("status.devices of claims is not written", error=fault.message)
                self._is_denied = True
                self._denied[uid] = clock() + _DENIED_AGAIN
                continue
            except (ObjectMissing, WriteConflict):  # deleted, or another one of its name
                log.debug("the claim is gone", claim=f"{wanted.namespace}/{wanted.name}")
            except RequestRefused as fault:  # deallocated meanwhile, say
                log.warning("a claim's status is not written", error=fault.message)
            self._backoff.reset()
            self._written[uid] = wanted
        # An older time is of one that was denied, and is wanted as it was before.
        again = min((until for until in self._denied.values() if until > begun), default=None)
        self._is_denied = again is not None
        return again

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
