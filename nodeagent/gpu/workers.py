"""Threads for calls that may never return: the driver's, and looks into /proc.

A call into the driver cannot be cancelled. So each GPU has one thread of its own, each call into
the driver has a deadline, and a thread that is still in it afterwards is left there: its GPU is
out of reach until the call returns, everything else goes on. A job of many calls may take as long
as they need together, up to a limit. Time for which this process waited for a processor does not
count. The threads are daemons, so the program can end without them.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError
from nodeagent.processor_waits import Stopwatch
from nodeagent.structs import Struct, field

# How many deadlines a job of many calls may take, each of which keeps its own.
JOB_LIMIT = 6

Result = TypeVar("Result")
_Queue = SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], Callable[[], bool]] | None]


# What each thread is doing in the driver just now. A deadline is for one call: a GPU that answers
# slowly is not one that hangs. So the threads note each call, and the waiting side looks at that.


class Postponed(Exception):
    """A job that gives way ended before its next driver call, because another waits."""


class CallProgress:
    """One thread's calls since `restart`. Written by that thread, read by others; times are in
    seconds, monotonic.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self, ends: Callable[[], bool] = bool) -> None:
        self._ends = ends
        self.call = ""
        self.since = time.monotonic()
        self.calls = 0
        self.slowest = ("", 0.0)

    def begin(self, call: str) -> None:
        if self._ends():
            raise Postponed
        self.since = time.monotonic()
        self.call = call

    def end(self) -> None:
        now = time.monotonic()
        took = now - self.since
        if took > self.slowest[1]:
            self.slowest = (self.call, took)
        self.calls += 1
        self.call = ""
        self.since = now

    @property
    def silence(self) -> float:
        """Seconds since it last came to or from the driver."""
        return time.monotonic() - self.since

    @property
    def pace(self) -> str:
        """A summary: `106 driver calls, the slowest nvmlDeviceGetUUID with 0.12 s`."""
        name, seconds = self.slowest
        return f"{self.calls} driver calls, the slowest {name or 'none'} with {seconds:.2g} s"


_here = threading.local()


def current() -> CallProgress:
    """The progress of the calling thread."""
    try:
        return _here.progress  # type: ignore[no-any-return]  # only this module sets it
    except AttributeError:
        _here.progress = CallProgress()
        return current()


class _Job(Struct, frozen=True):
    """One function on its way through the thread, in which each call has the `deadline`; `result`
    is delivered into the event loop.
    """

    what: str
    deadline: float
    result: asyncio.Future[Any]
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Worker:
    """One thread that makes calls one after the other, each with a deadline.

    Belongs to one event loop. `name` is for sentences: `GPU 3`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0  # callers, of jobs that give way to none; read by the thread
        self._job: _Job | None = None
        self._overdue: float | None = None
        self._progress = CallProgress()
        self.pace = ""
        """How the last job's calls went, where it took longer than one call may; else empty."""

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    @property
    def in_call(self) -> bool:
        """Whether the thread is in a call, even one whose caller waits no longer."""
        return self._running() is not None

    @property
    def stuck(self) -> str:
        """Why calls are refused at the moment; empty when they are not."""
        job = self._running()
        if job is None or self._overdue != self._progress.since:
            return ""
        # A moment and not a duration, so that the message of one hang does not change.
        began = job.began_at
        call = self._progress.call or "a call"
        return (
            f"{self.name} has hung since {began:%Y-%m-%dT%H:%M:%SZ} in {call} that does not return"
        )

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
        gives_way: bool = False,
    ) -> Result:
        """Run `function` in the thread and return what it returns, or raise what it raises.

        `deadline` in seconds, for each driver call in it (for all of it if it makes none), and for
        the wait before it starts; the whole may take JOB_LIMIT times that. After a deadline
        DeadlineExceeded is raised, and while the thread stays in the call, further ones are
        refused with it. DriverError is raised where no thread can be started. Cancelling the caller
        of a `changing` function takes effect when the function has ended, at the latest at the
        deadline; any other is left to end by itself. A function that `gives_way` raises Postponed
        before its next driver call once another waits.
        """
        self._refuse_if_stuck(what)
        self._waiting += not gives_way
        try:
            await self._take_turn(what, deadline)
        finally:
            self._waiting -= not gives_way
        try:
            self._refuse_if_stuck(what)
            await self._wait_for_forsaken(deadline)
            result: asyncio.Future[Result] = self._begin(function, gives_way=gives_way)
            self._job = job = _Job(what, deadline, result)
            took = await self._wait(job, deadline, changing=changing)
            self.pace = self._progress.pace if took > deadline else ""
            return result.result()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Let the thread end after what it is doing; does not wait for it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    # --- the way through ----------------------------------------------------------------------

    async def _take_turn(self, what: str, deadline: float) -> None:
        """Wait for the job before; one that goes on may need longer than one call."""
        spent = Stopwatch(deadline)
        while True:
            try:
                async with asyncio.timeout(spent.next(deadline)):
                    await self._turn.acquire()
            except TimeoutError:
                self._refuse_if_stuck(what)
                spent.look()
                # Whether the one before goes on is known to its own wait.
                most = deadline * JOB_LIMIT if self._running() else deadline
                if spent.seconds >= most:
                    late = f"{self.name}: {what} could not begin within {deadline:g} s"
                    raise DeadlineExceeded.of("lateDriver", what=late) from None
            else:
                return

    def _begin(self, function: Callable[[], Result], *, gives_way: bool) -> asyncio.Future[Result]:
        if self._thread is None:
            self._thread = self._started_thread()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._overdue = None
        self._jobs.put((function, result, (lambda: self._waiting > 0) if gives_way else bool))
        return result

    def _started_thread(self) -> threading.Thread:
        thread = threading.Thread(
            target=_work,
            args=(self._jobs, self._progress),
            name=f"driver calls: {self.name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise DriverError.of("noThread", worker=self.name, why=error) from error
        return thread

    async def _wait(self, job: _Job, limit: float, *, changing: bool = False) -> float:
        """Wait for the job's end, with `limit` for each of its calls from now on; the seconds that
        this took, as far as they count.
        """
        cancelled, late = False, None
        spent, of_call, of = Stopwatch(limit), 0.0, self._progress.since
        while not job.result.done():
            # Read once: the thread may go on at this very moment, and then is not stuck.
            call, since = self._progress.call, self._progress.since
            counted = spent.look()
            of_call, of = (of_call + counted if since == of else counted), since
            silence = min(time.monotonic() - since, of_call)
            if silence >= limit:
                self._overdue = since  # it is stuck for as long as this stays
                what = f"{self.name}: {job.what} did not return within {limit:g} s"
                what = f"{what}; {call or 'the call'} is still in the driver"
                late = DeadlineExceeded.of("lateDriver", what=what)
                break
            left = min(limit - silence, limit * JOB_LIMIT - spent.seconds)
            if left <= 0:
                late = self._slowness(job, limit)
                break
            try:
                # Unlike wait_for, this leaves the future alone when the caller is cancelled.
                await asyncio.wait({job.result}, timeout=spent.next(left))
            except asyncio.CancelledError:
                if not changing:
                    raise
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if late:
            raise late
        return spent.so_far

    def _slowness(self, job: _Job, limit: float) -> DeadlineExceeded:
        self.pace = self._progress.pace  # for the log: figures would change what is published
        slowest = self._progress.slowest[0]
        took = f"{self.name}: {job.what} took more than {limit * JOB_LIMIT:g}"
        return DeadlineExceeded.of("slowDriver", took=took, slowest=slowest or "none")

    async def _wait_for_forsaken(self, deadline: float) -> None:
        """The caller of the last job may have been cancelled while it is still running."""
        job = self._running()
        if job is not None:
            await self._wait(job, deadline)

    # --- what is known of the thread ----------------------------------------------------------

    def _running(self) -> _Job | None:
        if self._job is not None and self._job.result.done():
            self._job, self._overdue = None, None
        return self._job

    def _refuse_if_stuck(self, what: str) -> None:
        if self.stuck:
            what = f"{self.stuck}, so {what} is not tried"
            raise DeadlineExceeded.of("lateDriver", what=what)


def _work(jobs: _Queue, progress: CallProgress) -> None:
    _here.progress = progress
    while (job := jobs.get()) is not None:
        function, result, ends = job
        progress.restart(ends)
        try:
            deliver = partial(result.set_result, function())
        except BaseException as error:  # noqa: BLE001  # it is raised where the call was made
            deliver = partial(_fail, result, error)
        with suppress(RuntimeError):  # the loop is closed
            result.get_loop().call_soon_threadsafe(deliver)
        del job, function, result, ends, deliver  # which must not stay alive until the next job


def _fail(result: asyncio.Future[Any], error: BaseException) -> None:
    result.set_exception(error)
    # Retrieved at once, so that asyncio does not log it where the caller or the loop has ended.
    result.exception()
