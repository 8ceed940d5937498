"""Observes all GPUs side by side; one that hangs or fails keeps its last known state.

NVML is shut down and started again when it stopped answering for every GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.layout_changes import read_changes
from nodeagent.gpu.nvidia_smi import read_time_slice
from nodeagent.gpu.nvml_errors import unavailable, with_subject
from nodeagent.gpu.observation import read_gpu
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.gpu.pool import GpuPool
from nodeagent.gpu.steps.change import mig_device
from nodeagent.gpu.users import UsageReading, UsageSource, device_processes
from nodeagent.plan.observed import NOT_LISTED, Access, Gpu, ObservedNode, Placement
from nodeagent.plan.shares import TimeSlice
from nodeagent.structs import replace

if TYPE_CHECKING:  # commands do without them
    from nodeagent.gpu.process_details import ProcessDetails
    from nodeagent.gpu.topology import Topology

_SHUTDOWN_PATIENCE = 1.0  # seconds to wait at the end for a driver that hangs
_TIME_SLICE_IS_FRESH = 30.0  # seconds; only nvidia-smi reports it, slowly

Result = TypeVar("Result")


@dataclass(kw_only=True, eq=False)
class Observer:
    """Knows each GPU as it was observed last; usable inside `async with`, as `Driver` describes.

    `observe_deadline` in seconds, for reading one whole GPU (and for starting NVML). `sources` know
    users that NVML does not see: open capability files, pods to which devices are allocated;
    `processes` adds whose they are and what they run. `nvidia_smi` is the program that resets GPUs
    and sets time slices, with leading arguments, if any. `topology` reads NUMA nodes and NVLinks;
    without it they stay unknown. `original` keeps what devices were before they were changed;
    without a file, for the driver's life. With `time_slices` every GPU's time slice is asked for,
    which takes a program's run for each; else only those of GPUs on which the agent changed it.
    """

    observe_deadline: float
    sources: Sequence[UsageSource] = ()
    nvidia_smi: Sequence[str] = ("nvidia-smi",)
    topology: Topology | None = None
    original: OriginalSettings = field(default_factory=lambda: OriginalSettings(None))
    time_slices: bool = False
    processes: ProcessDetails | None = None
    details: frozenset[str] | None = field(default=frozenset(), init=False)
    """MIG devices, by UUID, whose memory and compute mode have to be as they are now; those of
    others may be half a minute old. None: they are not read at all.
    """
    pool: GpuPool = field(init=False)
    _last: dict[str, Gpu] = field(default_factory=dict, init=False)
    _fresh_time_slices: dict[str, tuple[float, TimeSlice | None]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        self.pool = GpuPool(deadline=self.observe_deadline)
        if self.topology:
            self.pool.lend(self.topology.worker)

    async def __aenter__(self) -> Self:
        try:
            await self.pool.start()
        except DriverError as error:
            await self._leave()
            raise unavailable(error) from error
        except asyncio.CancelledError:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def _leave(self) -> None:
        with suppress(DriverError):
            await self.pool.shut_down(patience=_SHUTDOWN_PATIENCE)
        for source in self.sources:
            await source.close()
        if self.processes:
            self.processes.close()
        self.pool.close()

    # --- all GPUs, or one -----------------------------------------------------------------------

    async def observe(self, *, details: bool = True) -> ObservedNode:
        """Every GPU as it is now, side by side; `details` as in `observe_gpu`.

        Never raises for one GPU's failure: that GPU has access Unknown or Lost. Raises
        DriverError when the driver as a whole fails before it ever listed a GPU.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self.observe_deadline
        gpus, failure = await self._observe_all(details)
        if not failure and _silent(gpus) and clock() < until:  # the failure may pass
            # Without persistence mode a card loses MIG mode and instances when NVML is closed.
            gpus, failure = await self._observe_all(details)
        if failure or _silent(gpus) or not self.pool.is_started:
            try:
                if await self.pool.restart():
                    gpus, failure = await self._observe_all(details)
            except DriverError as error:
                failure = failure or error
        if failure and not gpus:
            raise failure
        slow = ((gpu.index, gpu.worker.pace) for gpu in self.pool.present)
        return ObservedNode(
            tuple([await self._completed(gpu) for gpu in gpus]),
            self.pool.driver_version,
            tuple((index, pace) for index, pace in slow if pace),
        )

    async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU. Without
        `details` it has those memory sizes and compute modes of MIG devices that are known already.
        """
        async with self.pool.lock.shared():
            device = self.pool.find(uuid)
            found = await self._read(device, self.details if details else None) if device else None
        if found is None or found.uuid != uuid:
            return self._require((await self.observe()).gpu(uuid), f"GPU {uuid}")
        return await self._completed(found)

    async def observe_changes(
        self,
        uuid: str,
        made: Mapping[Placement, int] = MappingProxyType({}),
        gone: Collection[int] = (),
        *,
        before: Gpu | None = None,
        users: bool = False,
    ) -> Gpu:
        """The GPU as `before`, with the GPU instances that were made since (their places, each with
        the id of its profile), one device in each, and without those of the ids that are `gone`.
        `users`: with its users as they are now.

        Where anything else may be different it is read anew, without details.
        """
        device = self.pool.find(uuid)
        if before is not None and device is not None and before.answers:
            job = partial(read_changes, device, before, made, gone, users=users)
            with suppress(DriverError):
                async with self.pool.lock.shared():
                    found = await device.worker.call(
                        job, what="observing what changed", deadline=self.observe_deadline
                    )
                    if found is not None:
                        return (await self._with_users([found]))[0] if users else found
        return await self.observe_gpu(uuid, details=False)

    def known(self, gpu: GpuDevice) -> Gpu:
        """The GPU as it was observed last; without UUID and address while it never gave them."""
        return self._last.get(gpu.uuid, gpu.unchanging)

    async def _observe_all(self, details: bool) -> tuple[list[Gpu], DriverError | None]:
        """All GPUs, and why the driver as a whole does not answer, if it does not."""
        async with self.pool.lock.shared():
            with self._ask_remote() as asked:
                try:
                    await self.pool.enumerate()
                except DriverError as error:
                    return [self._unreachable(gpu, error) for gpu in self.pool.present], error
                reads = (
                    self._read_without_users(gpu, self.details if details else None, confirm=True)
                    for gpu in self.pool.present
                )
                gpus = await self._with_users(await asyncio.gather(*reads), asked)
            if self.topology:
                await self.topology.read(gpus, self.pool.session)
        seen = {gpu.uuid for gpu in gpus}
        taken = {gpu.pci_bus_id for gpu in gpus if gpu.pci_bus_id and gpu.answers}
        for gpu in [g for g in self._last.values() if g.uuid not in seen]:
            if gpu.pci_bus_id in taken:  # another GPU is in its place now
                del self._last[gpu.uuid]
        remedy = "look for it with `lspci -d 10de:`, and reboot the node"
        vanished = (gpu for uuid, gpu in self._last.items() if uuid not in seen)
        lost = (
            replace(gpu, access=Access.LOST, access_reason=NOT_LISTED, access_remedy=remedy)
            for gpu in vanished
        )
        return [*gpus, *lost], None

    @contextmanager
    def _ask_remote(self) -> Iterator[Mapping[UsageSource, Awaitable[UsageReading]]]:
        """Have the remote sources asked for users while the block reads the GPUs."""
        remote = [source for source in self.sources if source.is_remote]
        asked = {source: asyncio.create_task(source.ask()) for source in remote}
        try:
            yield asked
        finally:
            for task in asked.values():
                task.cancel()  # still running where no GPU answers or the caller was cancelled

    async def _read(self, gpu: GpuDevice, details: frozenset[str] | None = None) -> Gpu:
        return (await self._with_users([await self._read_without_users(gpu, details)]))[0]

    async def _read_without_users(
        self, gpu: GpuDevice, details: frozenset[str] | None = None, *, confirm: bool = False
    ) -> Gpu:
        """A GPU as NVML reports it, while the lock is held; never raises for its failure."""
        try:
            found = await gpu.worker.call(
                lambda: read_gpu(gpu, details, confirm=confirm),
                what="observing it",
                deadline=self.observe_deadline,
            )
        except DeadlineExceeded as error:
            return self._unreachable(gpu, error)
        except DriverError as error:
            gpu.give_up_handle()
            return self._unreachable(gpu, error)
        self._last[found.uuid] = found
        return found

    def _unreachable(self, gpu: GpuDevice, error: DriverError) -> Gpu:
        access = Access.LOST if isinstance(error, GpuLost) else Access.UNKNOWN
        return replace(
            self.known(gpu),
            index=gpu.index,
            access=access,
            access_reason=error.message,
            access_remedy=error.remedy,
        )

    async def _with_users(
        self,
        gpus: Sequence[Gpu],
        asked: Mapping[UsageSource, Awaitable[UsageReading]] = MappingProxyType({}),
    ) -> list[Gpu]:
        """The GPUs with the users that only other sources know, and with details of all users."""
        found = list(gpus)
        for source in self.sources:
            found = await source.with_users(found, asked.get(source))
        return await self.processes.with_details(found) if self.processes else found

    # --- what NVML does not report with the rest ------------------------------------------------

    async def _completed(self, gpu: Gpu) -> Gpu:
        """The GPU with its place in the machine, its time slice, and its original settings."""
        if self.topology:
            gpu = self.topology.with_topology(gpu)
        if not gpu.uuid:
            return gpu
        gpu = replace(gpu, time_slice=await self._fresh_time_slice(gpu))
        return self.original.with_earlier(gpu)

    async def _fresh_time_slice(self, gpu: Gpu) -> TimeSlice | None:
        """Read the time slice where it matters; None also where that fails, as a plan allows."""
        concerned = (
            self.time_slices
            or gpu.uuid in self._fresh_time_slices
            or self.original.time_slice(gpu.uuid) is not None
        )
        if not concerned or not gpu.answers or gpu.in_mig_mode:
            return None
        now = asyncio.get_running_loop().time()
        read_at, known = self._fresh_time_slices.get(gpu.uuid, (-_TIME_SLICE_IS_FRESH, None))
        if known is not None and now - read_at < _TIME_SLICE_IS_FRESH:
            return known
        with suppress(DriverError):
            known = await self.time_slice(gpu.uuid)
            self._fresh_time_slices[gpu.uuid] = (now, known)
            return known
        return None

    async def time_slice(self, uuid: str) -> TimeSlice | None:
        """The time slice of a GPU; None when the output of nvidia-smi is not understood.

        It runs that program, so it is asked for only where it matters. Raises DriverError when
        the program cannot be run, fails or is late.
        """
        async with self.pool.lock.shared():  # a reset waits until no nvidia-smi has the GPU open
            return await read_time_slice(self.nvidia_smi, uuid, deadline=self.observe_deadline)

    async def mps_memory(self, uuid: str) -> Mapping[int, int | None]:
        """Bytes by pid that MPS clients have on a GPU or MIG device.

        None for a client whose use the driver does not report. Raises DriverError when there is
        no such device, or the driver does not list its clients.
        """

        def read() -> Mapping[int, int | None]:
            whole = uuid == gpu.identity().uuid
            found = device_processes(gpu.handle if whole else mig_device(uuid), "mps")
            return {process.pid: process.memory for process in found}

        async with self.pool.lock.shared():
            of_device = (
                gpu
                for gpu in self.pool
                if uuid == gpu.uuid or any(d.uuid == uuid for d in self.known(gpu).devices())
            )
            gpu = self._require(next(of_device, None), f"device {uuid}")
            return await self._call(
                gpu, read, what="asking for MPS clients", deadline=self.observe_deadline
            )

    async def _call(
        self,
        gpu: GpuDevice,
        function: Callable[[], Result],
        *,
        what: str,
        deadline: float,
        changing: bool = False,
    ) -> Result:
        try:
            return await gpu.worker.call(function, what=what, deadline=deadline, changing=changing)
        except DeadlineExceeded:
            raise
        except DriverError as error:
            gpu.give_up_handle()  # it may be what was wrong, and costs little to get again
            raise with_subject(gpu.worker.name, error) from error

    def _require(self, found: Result | None, what: str) -> Result:
        if found is None:
            raise DriverError.of("driverKnowsNo", what=what)
        return found


def _silent(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and not any(gpu.answers for gpu in gpus)
