"""Samples the GPUs: what is read when, and who receives it.

Rounds come every `sample.interval`. Soon after each step the GPU that it changed is read, so that
what is known of instances is never much older than they are. Processes are listed more seldom,
because a list takes the driver long. Nothing here holds up the reconciler: a GPU at work is passed
over.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import Event, EventListener, Timing
from nodeagent.gpu.workers import Postponed
from nodeagent.health.readings import Answer
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.catalogue import Field, TextField
from nodeagent.plan.problems import Code, Problem
from nodeagent.processor_waits import ProcessorWaits
from nodeagent.settings import SampleSettings
from nodeagent.signals import Signal
from nodeagent.telemetry.process_reader import ProcessReader
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import ProcessSample, SampleBatch

log = structlog.get_logger(__name__)

_Found = TypeVar("_Found")

_CALM = 0.05  # seconds between a step and the round that looks at what came of it
_BUSY_INTERVAL = 0.3  # seconds between looks for a moment at which a GPU that was changed is free
_FIRST = 0.1  # seconds between looks whether the driver was started
_TOLERATED_FAILURES = 3  # slow intervals for which a reader may fail before it is a problem
_PROCESSES = 5.0  # seconds at least between two lists of processes
# Shares of the time for which the agent waits for a processor.
_SCARCE, _ENOUGH = 0.5, 0.25
_SHOWN_FOR = 10  # good windows before the problem ends: each change of it is written to the Node


class SamplingService:
    """Reads the GPUs while `run` runs. The reconciler opens the driver: reading starts once that
    has happened, or `begin` returns.

    It publishes `samples`, `processes`, NVML's `events`, whether these arrive (`listening`), and
    the `problems` of readers. `held` are UUIDs of GPUs that are not to be called.
    """

    def __init__(
        self,
        driver: Driver,
        settings: SampleSettings,
        *,
        begin: Callable[[], Awaitable[object]],
        held: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._driver = driver
        self._held = held
        self._begin = begin
        self._interval = settings.interval
        self._intervals = Intervals(
            slow=settings.slow_interval,
            patience=min(settings.deadline, settings.interval, 0.5),
            deadline=settings.deadline,
        )
        self.samples: Signal[SampleBatch] = Signal(SampleBatch())
        self.processes: Signal[tuple[ProcessSample, ...]] = Signal(())
        self.events: Signal[tuple[Event, ...]] = Signal(())
        self.listening: Signal[Answer] = Signal(Answer())
        self.problems: Signal[tuple[Problem, ...]] = Signal(())
        self.sampler = self._make_sampler((), ())  # `select` replaces it
        self._process_readers: dict[int, ProcessReader] = {}
        self._listener = EventListener(driver, Timing(deadline=settings.deadline))
        self._events_error: str | None = None  # why none arrive, as it was logged last
        self._problems: dict[str, tuple[str, ...]] = {}  # as they were logged last
        self._scarcity = Scarcity()
        self._tolerated = _TOLERATED_FAILURES * settings.slow_interval  # seconds
        self._failing: dict[tuple[str, str], float] = {}  # since when, by reader and GPU
        self._silent: set[str] = set()  # UUIDs of GPUs that do not answer at all
        self._due = asyncio.Event()

    def select(self, fields: Iterable[Field], texts: Iterable[TextField]) -> None:
        self.sampler.close()
        self.sampler = self._make_sampler(fields, texts)
        self._due.set()

    def _make_sampler(self, fields: Iterable[Field], texts: Iterable[TextField]) -> Sampler:
        return Sampler(self._driver, fields, texts, intervals=self._intervals, held=self._held)

    @property
    def events_reader(self) -> ReaderState:
        """Whether events can be read; without an age, since they come at no set time."""
        return ReaderState("events", succeeded=self._listener.failure is None)

    async def run(self) -> None:
        await self._driver_opened()
        unsubscribe = self._driver.applied.subscribe(lambda _: self._due.set())
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._sample(), name="sample")
                parts.create_task(self._follow_processes(), name="list processes")
                parts.create_task(
                    self._listener.run(partial(_publish, self.events), self._publish_listening),
                    name="events",
                )
        finally:
            unsubscribe()
            self.sampler.close()

    async def _driver_opened(self) -> None:
        """Wait until the driver is open, or cannot be opened."""
        tried = asyncio.ensure_future(self._begin())
        try:
            # `begin` awaits the reconciler's first round, long before whose end GPUs may be there.
            while not self._driver.pool.session and not tried.done():
                await asyncio.wait([tried], timeout=_FIRST)
        finally:
            tried.cancel()

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()  # of all GPUs; those that were just changed are read earlier
        while True:
            self._due.clear()
            early = loop.time() < due
            found = await self.sampler.round(only_changed=early)
            _publish(self.samples, found)
            self._report(found)
            if not early:
                due = max(due + self._interval, loop.time())
            behind = self.sampler.is_behind
            with suppress(TimeoutError):
                async with asyncio.timeout_at(
                    min(due, loop.time() + _BUSY_INTERVAL) if behind else due
                ):
                    await self._due.wait()
                await asyncio.sleep(_CALM)

    def _report(self, found: SampleBatch) -> None:
        """Log what cannot be read when it is new; a batch may lack what is read seldom."""
        for uuid, why in found.problems.items():
            if not set(why) <= set(self._problems.get(uuid, ())):
                self._problems[uuid] = why
                log.warning("not all values of a GPU can be read", gpu=uuid, why=why)
        self._judge_readers(found)
        failure = self._listener.failure
        error = failure.message if failure is not None else None
        if error != self._events_error:
            self._events_error = error
            if error is None:
                log.info("NVML events arrive again")
            else:
                log.warning("NVML events do not arrive", error=error)

    def _judge_readers(self, found: SampleBatch) -> None:
        """A reader that fails for long is a problem, unless its GPU does not answer at all."""
        now = asyncio.get_running_loop().time()
        answers = {gpu.uuid: gpu.answer for gpu in found.gpus if gpu.answer is not None}
        silent = {uuid for uuid, answer in answers.items() if answer.silence is not None}
        self._silent = (self._silent - answers.keys()) | silent
        failing = {
            (reader.name, reader.gpu): reader
            for reader in found.readers
            if not reader.succeeded and reader.at is not None and reader.uuid not in self._silent
        }
        self._failing = {name: self._failing.get(name, now) for name in failing}
        lasting = (n for n, since in self._failing.items() if now - since >= self._tolerated)
        of_readers = dict.fromkeys(self._problem_of(failing[name]) for name in lasting)
        problems = (*filter(None, [self._scarcity.problem()]), *of_readers)
        if problems != self.problems.newest:
            self.problems.publish(problems)

    def _problem_of(self, reader: ReaderState) -> Problem:
        why = "; ".join(self._problems.get(reader.uuid, ()))
        what = f"GPU {reader.gpu}" if reader.gpu else "the driver"
        return Problem.of(Code.READER, "values", gpu=reader.uuid, what=what, why=why)

    def _publish_listening(self) -> None:
        answer = self._listener.answer
        if answer is not None:
            _publish(self.listening, answer)

    # --- processes --------------------------------------------------------------------------------

    async def _follow_processes(self) -> None:
        loop, between = asyncio.get_running_loop(), max(_PROCESSES, self._interval)
        # Half way between two rounds of samples, which leave out a GPU that is busy.
        due = loop.time() + self._interval / 2
        while True:
            await self.list_processes()
            due = max(due + between, loop.time())
            await asyncio.sleep(due - loop.time())

    async def list_processes(self) -> None:
        found = await asyncio.gather(*map(self._processes_of, range(self._driver.pool.gpu_count)))
        _publish(self.processes, tuple(sample for sample in found if sample is not None))

    async def _processes_of(self, index: int) -> ProcessSample | None:
        if self._driver.pool.is_busy(index) or self._driver.pool[index].uuid in self._held():
            return None
        reader = self._process_readers.setdefault(index, ProcessReader())
        try:
            return await self._driver.pool.visit(
                index,
                reader.read,
                what="listing processes",
                deadline=self._intervals.deadline,
                gives_way=True,
            )
        except (DriverError, Postponed):
            return None  # the samples report what is wrong with this GPU


def _publish(signal: Signal[_Found], found: _Found) -> None:
    try:
        signal.publish(found)
    except Exception:  # a fault of ours; the next reading may go well
        log.exception("the readings of the GPUs cannot be used")


class Scarcity:
    """Judges after each `window` of seconds whether the agent itself was short of processor time,
    by the waits that the kernel counts.
    """

    def __init__(self, window: float = 30.0) -> None:
        self._window = window
        self._waits: ProcessorWaits | None = None
        self._since = 0.0  # in real time, as the kernel counts
        self._shown_for = 0  # windows for which the problem stays

    def problem(self) -> Problem | None:
        """The problem while the agent is short; judges a window when called after its end."""
        now = time.perf_counter()
        if self._waits is None:
            self._waits, self._since = ProcessorWaits(), now
        elif now - self._since >= self._window:
            share = self._waits.share()
            if share >= _SCARCE:
                self._shown_for = _SHOWN_FOR
            elif share < _ENOUGH:
                self._shown_for = max(self._shown_for - 1, 0)
            self._since = now
        return Problem.of(Code.STARVED) if self._shown_for > 0 else None
