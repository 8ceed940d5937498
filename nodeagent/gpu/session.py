"""NVML as a whole: started, shut down, and asked for what is of no single GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, DriverUnavailable
from nodeagent.gpu.nvml import Nvml
from nodeagent.gpu.nvml_errors import unavailable
from nodeagent.gpu.workers import Worker

Result = TypeVar("Result")


class Session:
    """One use of the library, with a thread for the calls that concern no single GPU.

    `deadline` in seconds, for each of them.
    """

    def __init__(self, *, deadline: float) -> None:
        self.nvml = Nvml()
        self.version = ""  # of the driver
        self.number = 0  # how often NVML was started: what an earlier session gave is worthless
        self._worker = Worker("the driver")
        self._deadline = deadline
        self._started = False
        self._refused: DriverUnavailable | None = None  # why NVML could not be started

    async def start(self) -> None:
        """Initialise NVML, unless it still is; raises DriverError."""
        try:
            await self._start()
        except DriverUnavailable as error:
            self._refused = error
            raise
        self._refused = None

    async def _start(self) -> None:
        until = time.monotonic() + self._deadline

        def start() -> None:
            self.nvml.initialise()
            if time.monotonic() > until:  # nobody waits any more, so nobody would shut it down
                self.nvml.shutdown()

        if not self._started:
            await self._call(start, what="starting NVML")
            self._started = True
            self.number += 1
        try:
            self.version = await self._call(self.nvml.driver_version, what="asking its version")
        except (DriverUnavailable, DeadlineExceeded):
            raise
        except DriverError:
            self.version = ""  # it is only told, so its absence must not stop anything

    async def count(self) -> int:
        """How many GPUs the driver has."""
        return await self._call(self.nvml.device_count, what="counting GPUs")

    async def ask(self, function: Callable[[Nvml], Result], *, what: str) -> Result:
        """What `function` finds out of no single GPU."""
        self.require()
        return await self._call(lambda: function(self.nvml), what=what)

    def require(self) -> None:
        """Raise the error that kept NVML from starting: calls would only return "uninitialized"."""
        if self._refused is not None and not self._started:
            raise unavailable(self._refused)

    async def shut_down(self, workers: Iterable[Worker], patience: float | None = None) -> bool:
        """Shut NVML down, unless one of `workers` is in a call that does not return.

        `patience` in seconds, for such calls and for the shutdown each; None: the deadline.
        Returns whether it is down. All handles are stale then.
        """
        patience = self._deadline if patience is None else min(patience, self._deadline)
        waiting = (worker.settled(patience) for worker in (self._worker, *workers))
        if self._started and all(await asyncio.gather(*waiting)):
            self._started = False
            await self._worker.call(
                self.nvml.shutdown, what="shutting NVML down", deadline=patience
            )
        return not self._started

    def close(self) -> None:
        self._worker.close()

    async def _call(self, function: Callable[[], Result], *, what: str) -> Result:
        return await self._worker.call(function, what=what, deadline=self._deadline)
