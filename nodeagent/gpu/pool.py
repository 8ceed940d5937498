"""The GPUs with a thread each, and the NVML session that all of them share.

Ordinary calls hold the pool's lock shared. Shutting NVML down and resetting a GPU hold it
exclusively, so that no call is in the driver meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, DriverUnavailable
from nodeagent.gpu import nvml
from nodeagent.gpu.device import Boards, GpuDevice
from nodeagent.gpu.nvml_errors import UNINITIALIZED, unavailable
from nodeagent.gpu.workers import Worker

Result = TypeVar("Result")


class ReadWriteLock:
    """Held by many with `shared`, or by one alone with `exclusive`."""

    def __init__(self) -> None:
        self._inside = 0
        self._empty = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._one = asyncio.Lock()

    @property
    def is_wanted(self) -> bool:
        """Whether one waits to hold it alone, or does. For any thread."""
        return not self._open.is_set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._one:
            self._open.clear()
            try:
                while self._inside:
                    self._empty.clear()
                    await self._empty.wait()
                yield
            finally:
                self._open.set()


class GpuPool:
    """A device for each GPU seen so far, and a thread for calls that concern no single GPU.

    `deadline` in seconds, for each of the latter.
    """

    def __init__(self, *, deadline: float) -> None:
        self.lock = ReadWriteLock()
        self.driver_version = ""
        self.session = 0
        """How often NVML was started; handles and samples of an earlier session are invalid."""
        self._deadline = deadline
        self._worker = Worker("the driver")
        self._gpus: list[GpuDevice] = []
        self._boards: Boards = {}
        self._lent: list[Worker] = []
        self.gpu_count = 0  # of those that the driver listed when they were counted last
        self._started = False  # written in the thread: what a caller gave up counts as well
        self._refused: DriverUnavailable | None = None  # why NVML could not be started

    def __iter__(self) -> Iterator[GpuDevice]:
        return iter(self._gpus)

    def __getitem__(self, index: int) -> GpuDevice:
        """Look up by the driver's number, also a GPU that the driver does not list any more."""
        return self._gpus[index]

    @property
    def present(self) -> Sequence[GpuDevice]:
        return self._gpus[: self.gpu_count]

    @property
    def is_started(self) -> bool:
        """Whether NVML was. One that only reports to be down answers for GPUs, but not `ask`."""
        return self._started

    def find(self, uuid: str) -> GpuDevice | None:
        return next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)

    # --- NVML as a whole ------------------------------------------------------------------------

    async def start(self) -> None:
        """Initialise NVML, unless it still is; raises DriverError."""
        try:
            await self._initialise()
        except DriverUnavailable as error:
            self._refused = error
            raise
        self._refused = None
        self._boards.clear()
        for gpu in self._gpus:
            gpu.forget()

    async def _initialise(self) -> None:
        given_up = False

        def initialise() -> None:
            nvml.initialise()
            self._started = True
            self.session += 1
            if given_up:  # by the caller, who would not shut it down
                self._shut_down()

        if not self._started:
            try:
                await self._call(initialise, what="starting NVML")
            except DeadlineExceeded:
                given_up = True
                raise
        try:
            version = await self._call(
                lambda: nvml.call("nvmlSystemGetDriverVersion"), what="asking its version"
            )
            self.driver_version = str(version)
        except (DriverUnavailable, DeadlineExceeded):
            raise
        except DriverError:
            self.driver_version = ""  # for display only

    async def restart(self) -> bool:
        """Begin anew with the driver, which may have been reloaded; False while a call hangs."""
        async with self.lock.exclusive():
            try:
                down = await self.shut_down()
            except DriverError:
                down = True  # it stays as it is, but may answer again
            if down:
                await self.start()
            return down

    async def shut_down(self, *, patience: float | None = None) -> bool:
        """Shut NVML down, unless a call does not return; whether it is down.

        `patience` in seconds, for such calls and for the shutdown each; None: the deadline.
        All handles are invalid afterwards.
        """
        patience = self._deadline if patience is None else min(patience, self._deadline)
        settled = await asyncio.gather(*(worker.settled(patience) for worker in self._workers))
        if self._started and all(settled):
            await self._worker.call(self._shut_down, what="shutting NVML down", deadline=patience)
        return not self._started

    def _shut_down(self) -> None:
        """NVML counts its starts: begun anew after this failed, it would stay open for good."""
        try:
            nvml.shutdown()
        except DriverError as error:
            if error.code != UNINITIALIZED:
                raise
        self._started = False

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    @property
    def _workers(self) -> list[Worker]:
        return [self._worker, *(gpu.worker for gpu in self._gpus), *self._lent]

    async def enumerate(self) -> None:
        self.gpu_count = await self._call(nvml.device_count, what="counting GPUs")
        new = range(len(self._gpus), self.gpu_count)
        self._gpus += (GpuDevice(index, self._boards) for index in new)

    # --- calls between the steps, for sampling ----------------------------------------------------

    def is_busy(self, index: int) -> bool:
        return self._gpus[index].worker.busy

    async def visit(
        self,
        index: int,
        function: Callable[[GpuDevice], Result],
        *,
        what: str,
        deadline: float,
        gives_way: bool = False,
    ) -> Result:
        """Run `function` in a GPU's own thread, between its steps; raises DriverError, and with
        `gives_way` Postponed once a look or a step waits for it.

        So nothing is asked of an instance while it is destroyed, and NVML is not shut down
        meanwhile. `deadline` in seconds, for its turn and for the call each.
        """
        async with self.lock.shared():
            gpu = self._gpus[index]
            return await gpu.worker.call(
                lambda: function(gpu), what=what, deadline=deadline, gives_way=gives_way
            )

    def lend(self, worker: Worker) -> None:
        """NVML is shut down only while this worker is in no call; `close` closes it too."""
        self._lent.append(worker)

    async def ask(
        self,
        function: Callable[[], Result],
        *,
        what: str,
        worker: Worker | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run `function`, which concerns no single GPU, while NVML stays initialised; raises
        DriverError. In the pool's own thread, or in that of a lent worker.
        """
        async with self.lock.shared():
            if self._refused is not None and not self._started:  # why, and not "uninitialized"
                raise unavailable(self._refused)
            return await (worker or self._worker).call(
                function, what=what, deadline=deadline or self._deadline
            )

    async def _call(self, function: Callable[[], Result], *, what: str) -> Result:
        return await self._worker.call(function, what=what, deadline=self._deadline)
