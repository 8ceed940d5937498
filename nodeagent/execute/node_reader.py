"""The GPUs and the MPS daemons on them, observed as one node.

The driver knows nothing of daemons. Here its readings are joined with what is known of them, and
with what a device was like before it was given to MPS or to another time slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MpsDaemon,
    ObservedNode,
    Usage,
)
from nodeagent.plan.shares import TimeSlice

_TIME_SLICE_IS_FRESH = 30.0  # seconds; only nvidia-smi reports it, slowly


class Daemons(Protocol):
    """The fleet, or a survey of the daemons that an earlier agent left."""

    def daemon_of(self, device: str) -> MpsDaemon | None: ...


@dataclass(frozen=True, slots=True)
class SurveyedDaemons:
    """Daemons as a survey found them, unsupervised."""

    daemons: Mapping[str, MpsDaemon]

    def daemon_of(self, device: str) -> MpsDaemon | None:
        return self.daemons.get(device)


class LastObservation:
    """The node as it was observed last; made before those who observe and those who judge by it."""

    def __init__(self) -> None:
        self.node: ObservedNode | None = None


class NodeReader:
    """The whole node for those who only look. Usable inside `async with`, as the driver is.

    With `time_slices` every GPU's time slice is asked for, which takes a program's run for each;
    else only those of GPUs on which the agent changed it.
    """

    def __init__(
        self,
        driver: Driver,
        daemons: Daemons,
        remembered: OriginalSettings,
        observation: LastObservation,
        *,
        time_slices: bool,
    ) -> None:
        self._driver = driver
        self._daemons = daemons
        self._remembered = remembered
        self._all_time_slices = time_slices
        self._time_slices: dict[str, tuple[float, TimeSlice | None]] = {}
        self._observation = observation

    @property
    def seen(self) -> ObservedNode | None:
        return self._observation.node

    async def __aenter__(self) -> Self:
        await self._driver.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._driver.__aexit__(kind, error, traceback)

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, with its daemons; raises as the driver does."""
        self._driver.read_details(exact=self._shared())
        observed = await self._driver.observe()
        gpus = [await self._completed(gpu) for gpu in observed.gpus]
        self._observation.node = replace(observed, gpus=tuple(gpus))
        return self._observation.node

    async def observe_gpu(self, uuid: str, *, everything: bool = False) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU.

        `everything`: also compute modes that no daemon depends on yet.
        """
        return await self._record(uuid, await self._driver.observe_gpu(uuid, everything=everything))

    async def read_back(self, uuid: str) -> Gpu:
        """As `observe_gpu`, without details that no step depends on."""
        return await self._record(uuid, await self._driver.read_back(uuid))

    async def _record(self, uuid: str, found: Gpu) -> Gpu:
        gpu = await self._completed(found)
        if self.seen is not None:
            gpus = tuple(gpu if known.uuid == uuid else known for known in self.seen.gpus)
            self._observation.node = replace(self.seen, gpus=gpus)
        return gpu

    def _shared(self) -> frozenset[str]:
        """The MIG devices with a daemon or a changed compute mode, as far as they were seen."""
        gpus = self.seen.gpus if self.seen else ()
        devices = (device.uuid for gpu in gpus for i in gpu.instances for device in i.compute)
        return frozenset(
            uuid
            for uuid in devices
            if self._daemons.daemon_of(uuid) or self._remembered.earlier_mode(uuid)
        )

    async def _completed(self, gpu: Gpu) -> Gpu:
        if not gpu.uuid:
            return gpu
        slice_now = await self._time_slice(gpu)
        return replace(
            gpu,
            mps=self._daemons.daemon_of(gpu.uuid),
            usage=self._users(gpu.usage, gpu.uuid),
            earlier_mode=self._remembered.earlier_mode(gpu.uuid),
            time_slice=slice_now,
            earlier_time_slice=self._remembered.earlier_time_slice(gpu.uuid),
            instances=tuple(map(self._completed_instance, gpu.instances)),
        )

    def _completed_instance(self, instance: GpuInstance) -> GpuInstance:
        return replace(instance, compute=tuple(map(self._completed_device, instance.compute)))

    def _completed_device(self, device: ComputeInstance) -> ComputeInstance:
        return replace(
            device,
            mps=self._daemons.daemon_of(device.uuid),
            usage=self._users(device.usage, device.uuid),
            earlier_mode=self._remembered.earlier_mode(device.uuid),
        )

    def _users(self, usage: Usage, device: str) -> Usage:
        """Without the daemon's own server: it ends with the daemon and does no work of its own."""
        daemon = self._daemons.daemon_of(device)
        if daemon is None:
            return usage
        left = tuple(user for user in usage.processes if user.pid not in daemon.servers)
        return replace(usage, processes=left)

    async def _time_slice(self, gpu: Gpu) -> TimeSlice | None:
        concerned = (
            self._all_time_slices
            or gpu.uuid in self._time_slices
            or self._remembered.earlier_time_slice(gpu.uuid) is not None
        )
        if not concerned or gpu.access is not Access.OK or (gpu.mig and gpu.mig.current):
            return None
        now = asyncio.get_running_loop().time()
        read_at, known = self._time_slices.get(gpu.uuid, (-_TIME_SLICE_IS_FRESH, None))
        if known is not None and now - read_at < _TIME_SLICE_IS_FRESH:
            return known
        with suppress(DriverError):  # it is not known then, which the plan copes with
            known = await self._driver.time_slice(gpu.uuid)
            self._time_slices[gpu.uuid] = (now, known)
            return known
        return None
