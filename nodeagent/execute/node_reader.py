"""The GPUs and the MPS daemons on them, observed as one node.

The driver knows nothing of daemons. Here its readings are joined with what is known of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Self

from nodeagent.gpu.driver import Driver
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MpsDaemon,
    ObservedNode,
    Placement,
)
from nodeagent.plan.users import Usage
from nodeagent.structs import replace

DaemonOf = Callable[[str], MpsDaemon | None]
"""The daemon of a device, by its UUID: the fleet's, or as a survey found those that were left."""


class LastObservation:
    """The node as it was observed last; made before those who observe and those who judge by it."""

    def __init__(self) -> None:
        self.node: ObservedNode | None = None


class NodeReader:
    """The whole node for those who only look. Usable inside `async with`, as the driver is."""

    def __init__(self, driver: Driver, daemon_of: DaemonOf, observation: LastObservation) -> None:
        self._driver = driver
        self._daemon_of = daemon_of
        self._observation = observation
        self._newer: dict[str, Gpu] = {}  # read alone since an observation began, by UUID

    @property
    def seen(self) -> ObservedNode | None:
        return self._observation.node

    async def __aenter__(self) -> Self:
        await self._driver.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._driver.__aexit__(*error)

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, with its daemons; raises as the driver does.

        That takes as long as the slowest GPU. One that was read alone meanwhile is as it was then.
        """
        self._driver.details = self._shared()
        self._newer.clear()
        observed = await self._driver.observe()
        newest = (
            self._newer.get(gpu.uuid, gpu) if gpu.access is Access.OK else gpu
            for gpu in observed.gpus
        )
        gpus = tuple(self._completed(gpu) if gpu.uuid else gpu for gpu in newest)
        self._observation.node = replace(observed, gpus=gpus)
        return self._observation.node

    async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu:
        """One GPU as it is now, as the driver's does."""
        return self._record(await self._driver.observe_gpu(uuid, details=details))

    async def observe_changes(
        self,
        uuid: str,
        made: Mapping[Placement, int] = MappingProxyType({}),
        gone: Collection[int] = (),
        *,
        users: bool = False,
    ) -> Gpu:
        """One GPU as it was seen last, with what was made and destroyed since; see the driver's."""
        before = self.seen.gpu(uuid) if self.seen else None
        driver = self._driver
        found = await driver.observe_changes(uuid, made, gone, before=before, users=users)
        return self._record(found)

    def _record(self, found: Gpu) -> Gpu:
        self._newer[found.uuid] = found
        gpu = self._completed(found)
        if self.seen is not None:
            gpus = tuple(gpu if known.uuid == gpu.uuid else known for known in self.seen.gpus)
            self._observation.node = replace(self.seen, gpus=gpus)
        return gpu

    def _shared(self) -> frozenset[str]:
        """The devices with a daemon or a changed compute mode, as far as they were seen."""
        gpus = self.seen.gpus if self.seen else ()
        return frozenset(
            device.uuid
            for gpu in gpus
            for device in gpu.devices()
            if self._daemon_of(device.uuid) or self._driver.original.mode(device.uuid)
        )

    def _completed(self, gpu: Gpu) -> Gpu:
        def device_with(_: GpuInstance, device: ComputeInstance) -> ComputeInstance:
            daemon = self._daemon_of(device.uuid)
            return replace(device, mps=daemon, usage=_users(device.usage, daemon))

        daemon = self._daemon_of(gpu.uuid)
        gpu = replace(gpu, mps=daemon, usage=_users(gpu.usage, daemon))
        return gpu.with_mig_devices(device_with)


def _users(usage: Usage, daemon: MpsDaemon | None) -> Usage:
    """Without the daemon's own server: it ends with the daemon and does no work of its own."""
    if daemon is None:
        return usage
    left = tuple(user for user in usage.processes if user.pid not in daemon.servers)
    return replace(usage, processes=left)
