"""The only thing above this package that talks to the driver: observe GPUs, apply steps.

Each GPU has a worker thread; one that hangs or fails becomes `Unknown` or `Lost` with its last
known picture, and the others go on. NVML itself is shut down and started again when it stopped
answering for every GPU, and around a GPU reset, which the driver does not do while anybody, this
process included, has the GPU open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from nodeagent.errors import DriverError
from nodeagent.gpu.all_gpus import AllGpus
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Nvml
from nodeagent.gpu.nvml_errors import unavailable
from nodeagent.gpu.pool import GpuPool
from nodeagent.gpu.recent import Details
from nodeagent.gpu.steps.applying import Applying
from nodeagent.gpu.steps.change import otherwise
from nodeagent.gpu.steps.time_slice import read_time_slice
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.usage import AllocationSource, UsageSource
from nodeagent.gpu.usage_reader import UsageReader
from nodeagent.gpu.workers import Worker
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.shares import TimeSlice
from nodeagent.plan.steps import Destruction, StartMps, Step, StopMps

Result = TypeVar("Result")

_LEAVING = 1.0  # seconds: nobody who ends waits long for a driver that hangs


class Driver:
    """The node's driver, usable inside `async with`, which raises DriverUnavailable.

    It can be entered again after it was left: a call that hung then is known and not repeated.

    Deadlines are seconds: `observe_deadline` for reading one whole GPU (and for starting NVML),
    `step_deadline` for one step. `usage` knows users of MIG devices that NVML does not see; None
    where there are no others, as under simulation. `allocations` knows to whom devices and GPUs
    were given; None where nobody gives them. `nvidia_smi` is the program that resets GPUs
    and knows their time slices, with leading arguments, if any. `topology` reads NUMA nodes and
    NVLinks; without it they stay unknown. `clock`, in seconds, is for the age of what was read of
    users before a step.
    """

    def __init__(
        self,
        *,
        observe_deadline: float,
        step_deadline: float,
        usage: UsageSource | None = None,
        allocations: AllocationSource | None = None,
        nvidia_smi: Sequence[str] = ("nvidia-smi",),
        topology: Topology | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe_deadline = observe_deadline
        self._nvidia_smi = tuple(nvidia_smi)
        self._reader = UsageReader(usage, deadline=observe_deadline) if usage else None
        self._allocations = allocations
        self._posts = GpuPool(deadline=observe_deadline, topology=topology)
        self._gpus = AllGpus(
            self._posts,
            deadline=observe_deadline,
            reader=self._reader,
            allocations=allocations,
            topology=topology,
        )
        self._applying = Applying(
            self._posts,
            self._gpus,
            deadline=step_deadline,
            reader=self._reader,
            allocations=allocations,
            nvidia_smi=self._nvidia_smi,
            clock=clock,
        )
        self.taken: list[Callable[[Step], None]] = []
        """Called after each step that was begun, whatever came of it."""

    async def __aenter__(self) -> Self:
        try:
            await self._posts.start()
        except DriverError as error:
            await self._leave()
            raise unavailable(error) from error
        except asyncio.CancelledError:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        with suppress(DriverError):
            await self._posts.shut_down(patience=_LEAVING)
        if self._reader:
            await self._reader.close()
        if self._allocations:
            await self._allocations.close()
        self._posts.close()

    # --- observing ------------------------------------------------------------------------------

    async def observe(self) -> ObservedNode:
        """Every GPU as it is now, side by side.

        Never raises for one GPU's failure: that GPU has access Unknown or Lost. Raises
        DriverError when the driver as a whole fails before it ever told of a GPU.
        """
        return await self._gpus.observe()

    async def observe_gpu(self, uuid: str, *, everything: bool = False) -> Gpu:
        """One GPU as it is now; raises DriverError when the driver knows no such GPU.

        Memory and compute mode of MIG devices may be half a minute old if no daemon needs them,
        unless `everything` is to be read.
        """
        details = Details(everything=True) if everything else self._gpus.details
        return await self._gpus.observe_gpu(uuid, details)

    async def read_back(self, uuid: str) -> Gpu:
        """As `observe_gpu`, without memory and compute modes that are not known already."""
        return await self._gpus.observe_gpu(uuid, None)

    def read_details(self, *, exact: frozenset[str] = frozenset(), wanted: bool = True) -> None:
        """Whether observations read the memory and compute mode of MIG devices, and how they could
        be divided. Those of `exact` (UUIDs) are read each time, others now and then.
        """
        self._gpus.details = Details(exact) if wanted else None

    async def mps_memory(self, device: str) -> Mapping[int, int | None]:
        """Bytes by pid that MPS clients have on a GPU or MIG device, by its UUID.

        None for a client whose use the driver does not report. Raises DriverError when there is
        no such device, or the driver does not tell its clients.
        """
        return await self._gpus.mps_memory(device)

    async def time_slice(self, uuid: str) -> TimeSlice | None:
        """The time slice of a GPU; None when nvidia-smi does not tell it in words that are known.

        It runs that program, so it is asked for only where it matters. Raises DriverError when
        the program cannot be run, fails or is late.
        """
        async with self._posts.gate.together():  # a reset waits until no nvidia-smi has it
            return await read_time_slice(self._nvidia_smi, uuid, deadline=self._observe_deadline)

    # --- applying -------------------------------------------------------------------------------

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        """Look for the users of all that these steps of one GPU take away, before the first goes.

        Raises GpuInUse when there are or may be any, and DriverError. Each step looks again where
        this look has become old.
        """
        if self._posts.find(steps[0].gpu) is None:
            await self.observe_gpu(steps[0].gpu)
        await self._applying.check(steps)

    async def apply(self, step: Step) -> None:
        """Take one step and read back that it is so; raises DriverError if it is not.

        A step of an MPS daemon is refused: who supervises daemons takes it. Cancellation takes
        effect when the step has ended, at the latest at its deadline.
        """
        if isinstance(step, StopMps | StartMps):
            raise otherwise("an MPS daemon was to be started or stopped by who has only the driver")
        if self._posts.find(step.gpu) is None:
            await self.observe_gpu(step.gpu)
        try:
            await self._applying.take(step)
        finally:
            for tell in self.taken:
                tell(step)

    # --- for who samples ------------------------------------------------------------------------

    @property
    def session(self) -> int:
        """Grows when NVML is started anew: handles and samples of before are worthless."""
        return self._posts.session.number

    @property
    def gpu_count(self) -> int:
        """How many GPUs there were when they were counted last."""
        return len(self._posts.present)

    def known(self, index: int) -> Gpu:
        """The GPU as it was seen last; without UUID and address while it never told them."""
        return self._gpus.known(self._posts.at(index))

    def is_busy(self, index: int) -> bool:
        """Whether a step or an observation of this GPU is under way."""
        return self._posts.is_busy(index)

    async def ask(self, function: Callable[[Nvml], Result], *, what: str) -> Result:
        """What `function` finds out of no single GPU; raises DriverError."""
        return await self._posts.ask(function, what=what)

    async def visit(
        self, index: int, function: Callable[[GpuDevice], Result], *, what: str, deadline: float
    ) -> Result:
        """Run `function` in a GPU's own thread, between its steps; raises DriverError.

        So nothing is asked of an instance while it is destroyed, and NVML is not shut down
        meanwhile. `deadline` in seconds, for its turn and for the call each.
        """
        return await self._posts.visit(index, function, what=what, deadline=deadline)

    def lend(self, worker: Worker) -> None:
        """NVML is shut down only while this worker is in no call; the driver closes it."""
        self._posts.lend(worker)

    async def use(
        self, worker: Worker, function: Callable[[Nvml], Result], *, what: str, deadline: float
    ) -> Result:
        """Run `function` in a lent worker, while NVML is there for certain."""
        return await self._posts.use(worker, function, what=what, deadline=deadline)
