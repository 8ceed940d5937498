"""The GPUs' cards and threads, and NVML as a whole: who may call the driver, and when.

NVML is shut down, and a GPU reset, only while nobody is in a call: ordinary work passes the gate
together, that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nodeagent.errors import DriverError
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import Nvml
from nodeagent.gpu.read_write_lock import ReadWriteLock
from nodeagent.gpu.session import Session
from nodeagent.gpu.topology import Topology
from nodeagent.gpu.workers import Worker

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """A GPU's card and the thread that makes its calls."""

    card: GpuDevice
    worker: Worker


class GpuPool:
    """One for each GPU there ever was; `deadline` in seconds for what concerns no single GPU."""

    def __init__(self, *, deadline: float, topology: Topology | None) -> None:
        self.session = Session(deadline=deadline)
        self.gate = ReadWriteLock()
        self._topology = topology
        self._posts: list[GpuHandle] = []
        self._lent: list[Worker] = []
        self._count = 0

    def __iter__(self) -> Iterator[GpuHandle]:
        return iter(self._posts)

    @property
    def present(self) -> Sequence[GpuHandle]:
        """Those of the GPUs that the driver had when they were counted last."""
        return self._posts[: self._count]

    def at(self, index: int) -> GpuHandle:
        """By the driver's number; also one that it does not have any more."""
        return self._posts[index]

    def find(self, uuid: str) -> GpuHandle | None:
        return next((post for post in self._posts if post.card.uuid == uuid), None)

    # --- NVML as a whole ------------------------------------------------------------------------

    async def start(self) -> None:
        """Start NVML, unless it still is; raises DriverError."""
        await self.session.start()
        for post in self._posts:
            post.card.forget()
        if self._topology:
            self._topology.expect_anew()

    async def restart(self) -> bool:
        """Begin anew with the driver, which may have been reloaded; False while a call hangs."""
        async with self.gate.alone():
            try:
                down = await self.shut_down()
            except DriverError:
                down = True  # NVML says that it was down already
            if down:
                await self.start()
            return down

    async def shut_down(self, *, patience: float | None = None) -> bool:
        """Shut NVML down, unless a call hangs; whether it is down. See `Session.shut_down`."""
        return await self.session.shut_down(self.workers, patience)

    def close(self) -> None:
        """Their threads end with the calls that they are in."""
        for worker in self.workers:
            worker.close()
        self.session.close()

    @property
    def workers(self) -> list[Worker]:
        """The threads that call the driver, but for the session's own."""
        also = [self._topology.worker] if self._topology else []
        return [*(post.worker for post in self._posts), *also, *self._lent]

    async def enumerate(self) -> None:
        """Count the GPUs; raises DriverError."""
        self._count = await self.session.count()
        for index in range(len(self._posts), self._count):
            self._posts.append(
                GpuHandle(GpuDevice(index, self.session.nvml), Worker(f"GPU {index}"))
            )

    # --- calls between the steps ----------------------------------------------------------------

    def is_busy(self, index: int) -> bool:
        return self._posts[index].worker.busy

    async def ask(self, function: Callable[[Nvml], Result], *, what: str) -> Result:
        async with self.gate.together():
            return await self.session.ask(function, what=what)

    async def visit(
        self, index: int, function: Callable[[GpuDevice], Result], *, what: str, deadline: float
    ) -> Result:
        async with self.gate.together():
            post = self._posts[index]
            return await post.worker.call(lambda: function(post.card), what=what, deadline=deadline)

    def lend(self, worker: Worker) -> None:
        self._lent.append(worker)

    async def use(
        self, worker: Worker, function: Callable[[Nvml], Result], *, what: str, deadline: float
    ) -> Result:
        async with self.gate.together():
            self.session.require()
            return await worker.call(
                lambda: function(self.session.nvml), what=what, deadline=deadline
            )
