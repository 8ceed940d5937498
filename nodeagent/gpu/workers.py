"""Threads for calls that may never return: the driver's, and looks into /proc.

A call into the driver cannot be cancelled. So each GPU has one thread of its own, a call has a
deadline, and a thread that is still in the driver after it is left there: its GPU is out of
reach until the call returns, everything else goes on. The threads are daemons, so the program
can end without them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Generic, TypeVar

from nodeagent.errors import DeadlineExceeded

Result = TypeVar("Result")


class _Job(Generic[Result]):
    """One function on its way through the thread and back into the event loop."""

    def __init__(self, what: str, function: Callable[[], Result]) -> None:
        self.what = what
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.began_at = datetime.now(UTC)
        self.result: asyncio.Future[Result] = self.loop.create_future()
        # When nobody waits any more, a late failure is no news to anyone.
        self.result.add_done_callback(lambda result: result.cancelled() or result.exception())
        self._function = function

    def run(self) -> None:
        """Called in the thread."""
        try:
            value = self._function()
        except BaseException as error:  # noqa: BLE001  # it is raised where the call was made
            self._deliver(self._fail, error)
        else:
            self._deliver(self._succeed, value)

    def _deliver(self, end: Callable[..., None], value: object) -> None:
        try:
            self.loop.call_soon_threadsafe(end, value)
        except RuntimeError:  # the loop has ended meanwhile, and nobody waits
            return

    def _succeed(self, value: Result) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def _fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Worker:
    """One thread that makes calls one after the other, each with a deadline.

    Belongs to one event loop. `name` is for sentences: `GPU 3`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._turn = asyncio.Lock()
        self._job: _Job[object] | None = None
        self._overdue = False

    @property
    def busy(self) -> bool:
        """Whether a call would have to wait for another one."""
        return self._turn.locked()

    @property
    def stuck(self) -> str:
        """Why calls are refused at the moment; empty when they are not."""
        job = self._running()
        if job is None or not self._overdue:
            return ""
        # A moment and not a duration, so that the same trouble is told in the same words.
        since = f"{job.began_at:%Y-%m-%dT%H:%M:%SZ}"
        return f"{self.name} is stuck since {since} in a call that does not return"

    async def settled(self, deadline: float) -> bool:
        """Whether the thread is in no call, after waiting for one that is not overdue."""
        if self.stuck:
            return False
        with suppress(DeadlineExceeded):
            await self._wait_for_forsaken(deadline)
        return self._running() is None

    async def call(
        self,
        function: Callable[[], Result],
        *,
        what: str,
        deadline: float,
        changing: bool = False,
    ) -> Result:
        """Run `function` in the thread and return what it returns, or raise what it raises.

        `deadline` in seconds, for the waiting and for the running each; then DeadlineExceeded is
        raised, and further calls are refused with it until `function` has returned after all.
        Cancelling the caller of a `changing` function takes effect when the function has ended,
        at the latest at the deadline; any other is left to end by itself.
        """
        self._refuse_if_stuck(what)
        try:
            async with asyncio.timeout(deadline):
                await self._turn.acquire()
        except TimeoutError:
            self._refuse_if_stuck(what)
            raise _late(f"{self.name}: {what} could not begin within {deadline:g} s") from None
        try:
            self._refuse_if_stuck(what)
            await self._wait_for_forsaken(deadline)
            job = _Job(what, function)
            self._start(job)  # type: ignore[arg-type]  # a job of anything is a job of object
            await self._wait(job, job.began + deadline, changing=changing)
            return job.result.result()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Let the thread end after what it is doing; does not wait for it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    # --- the way through ----------------------------------------------------------------------

    def _start(self, job: _Job[object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=f"driver calls: {self.name}", daemon=True
            )
            self._thread.start()
        self._job = job
        self._overdue = False
        self._jobs.put(job)

    async def _wait(self, job: _Job[Result], until: float, *, changing: bool) -> None:
        cancelled = False
        while not job.result.done() and (left := until - job.loop.time()) > 0:
            try:
                # Unlike wait_for, this leaves the future alone when the caller is cancelled.
                await asyncio.wait({job.result}, timeout=left)
            except asyncio.CancelledError:
                if not changing:
                    raise
                cancelled = True
        if not job.result.done():
            self._overdue = True
        if cancelled:
            raise asyncio.CancelledError
        if not job.result.done():
            raise _late(
                f"{self.name}: {job.what} did not return within {until - job.began:g} s; "
                "the call is still in the driver"
            )

    async def _wait_for_forsaken(self, deadline: float) -> None:
        """Whoever made the last call may have been cancelled while it is still running."""
        job = self._running()
        if job is not None:
            await self._wait(job, job.loop.time() + deadline, changing=False)

    # --- what is known of the thread ----------------------------------------------------------

    def _running(self) -> _Job[object] | None:
        if self._job is not None and self._job.result.done():
            self._job, self._overdue = None, False
        return self._job

    def _refuse_if_stuck(self, what: str) -> None:
        if self.stuck:
            raise _late(f"{self.stuck}, so {what} is not even tried")


def _work(jobs: SimpleQueue[_Job[object] | None]) -> None:
    """What the thread does until it is told to end."""
    while (job := jobs.get()) is not None:
        job.run()
        del job  # it holds results, which nobody should have to wait for


def _late(message: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        message,
        code=None,
        name="DeadlineExceeded",
        call="",
        remedy="look for NVRM lines in the kernel log (dmesg); if it lasts, reboot the node",
    )
