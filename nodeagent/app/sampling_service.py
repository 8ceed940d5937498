"""Sampling as a part of the agent: who reads the GPUs, when, and who hears of it.

Rounds come every `sample.interval`, and soon after each step that changed something, so that what
is told of instances is never much older than they are. Processes are listed more seldom, because a
list takes the driver long. Nothing here holds up the reconciler: a GPU at work is passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import Event, EventListener, Timing
from nodeagent.health.readings import Answer
from nodeagent.metrics.agent_metrics import ReaderState
from nodeagent.metrics.catalogue import Field, TextField
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import Step
from nodeagent.settings import SampleSettings
from nodeagent.telemetry.process_reader import ProcessReader
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import ProcessSample, SampleBatch

log = structlog.get_logger(__name__)

_CALM = 0.05  # seconds between a step and the round that looks at what came of it
_FIRST = 0.1  # seconds between looks whether the driver was started
_PASSING = 3  # samples of what is read seldom, for which a reader may fail
_PROCESSES = 5.0  # seconds at least between two lists of processes


class SamplingService:
    """Reads while `run` runs. The driver is entered by somebody else; `begin` comes back when that
    was tried, and before nothing is read.

    Of `on_round`, `on_processes` and `on_events` each is called with what was read, `on_listener`
    when events stop or begin to arrive, `on_problems` when `problems` are others. `held` are UUIDs
    of GPUs of which nothing is to be asked.
    """

    def __init__(
        self,
        driver: Driver,
        settings: SampleSettings,
        *,
        on_round: Sequence[Callable[[SampleBatch], None]],
        on_processes: Callable[[tuple[ProcessSample, ...]], None],
        on_events: Sequence[Callable[[tuple[Event, ...]], None]] = (),
        on_listener: Callable[[Answer], None] = lambda _: None,
        on_problems: Callable[[], None] = lambda: None,
        held: Callable[[], frozenset[str]] = frozenset,
        begin: Callable[[], Awaitable[object]],
    ) -> None:
        self._driver = driver
        self._held = held
        self._begin = begin
        self._interval = settings.interval
        self._pace = Intervals(
            fast=settings.interval,
            slow=settings.slow_interval,
            patience=min(settings.deadline, settings.interval, 0.5),
            deadline=settings.deadline,
        )
        self._on_round = tuple(on_round)
        self._on_processes = on_processes
        self._on_events = tuple(on_events)
        self._wanted: tuple[tuple[Field, ...], tuple[TextField, ...]] = ((), ())
        self._sampler: Sampler | None = None
        self._process_readers: dict[int, ProcessReader] = {}
        self._on_listener = on_listener
        self._events = EventListener(driver, Timing(deadline=settings.deadline))
        self._deaf: str | None = None  # why events are not heard, as it was told last
        self._problems: dict[str, tuple[str, ...]] = {}  # as they were told last
        self.problems: tuple[Problem, ...] = ()
        self._on_problems = on_problems
        self._patience = _PASSING * settings.slow_interval
        self._failing: dict[ReaderState, float] = {}  # since when
        self._silent: set[str] = set()  # GPUs by UUID of which health says that nothing is read
        self._due = asyncio.Event()

    def select(self, fields: Iterable[Field], texts: Iterable[TextField]) -> None:
        """From now on these fields are read."""
        self._wanted = (tuple(fields), tuple(texts))
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        self._due.set()

    @property
    def sampler(self) -> Sampler | None:
        """Who reads just now."""
        return self._sampler

    @property
    def listener(self) -> ReaderState:
        """How the wait for events fares; what it hears has no age."""
        return ReaderState("events", succeeded=self._events.failure is None)

    async def run(self) -> None:
        """Read until cancelled."""
        await self._begun()
        self._driver.taken.append(self._step_taken)
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._sample(), name="sample")
                parts.create_task(self._follow_processes(), name="list processes")
                if self._on_events:
                    parts.create_task(self._events.run(self._heard, self._waited), name="events")
        finally:
            self._driver.taken.remove(self._step_taken)
            if self._sampler is not None:
                self._sampler.close()

    async def _begun(self) -> None:
        """The driver was started, or could not be."""
        tried = asyncio.ensure_future(self._begin())
        try:
            # The first round of all may take long, and the GPUs are there before it is over.
            while not self._driver.pool.session and not tried.done():
                await asyncio.wait([tried], timeout=_FIRST)
        finally:
            tried.cancel()

    def _step_taken(self, _: Step) -> None:
        self._due.set()

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._due.clear()
            sampler = self._sampler
            if sampler is None:
                sampler = self._sampler = self._make_sampler()
            self._deliver(await sampler.round())
            due = max(due + self._interval, loop.time())
            try:
                async with asyncio.timeout_at(due):
                    await self._due.wait()
                await asyncio.sleep(_CALM)
                due = loop.time()
            except TimeoutError:
                continue

    def _make_sampler(self) -> Sampler:
        fields, texts = self._wanted
        return Sampler(self._driver, fields, texts, pace=self._pace, held=self._held)

    def _deliver(self, found: SampleBatch) -> None:
        for hear in self._on_round:
            try:
                hear(found)
            except Exception:  # a fault of ours is told, and the next round may go well
                log.exception("what was sampled cannot be used")
        self._report(found)

    def _report(self, found: SampleBatch) -> None:
        """Say what cannot be read, once; a slow reader is not in every round."""
        for uuid, why in found.problems.items():
            if why and self._problems.get(uuid) != why:
                self._problems[uuid] = why
                log.warning("a GPU tells less than it should", gpu=uuid, why=why)
        self._judge_readers(found)
        failure = self._events.failure
        deaf = failure.message if failure is not None else None
        if deaf != self._deaf:
            self._deaf = deaf
            if deaf is None:
                log.info("what happens to the GPUs is heard again")
            else:
                log.warning("what happens to the GPUs is not heard", error=deaf)

    def _judge_readers(self, found: SampleBatch) -> None:
        """A reader that fails for long is a problem, unless its GPU does not answer at all."""
        now = asyncio.get_running_loop().time()
        for gpu in found.gpus:
            if gpu.answer is not None:
                known = self._silent.discard if gpu.answer.silence is None else self._silent.add
                known(gpu.uuid)
        failing = [
            replace(reader, age=None, duration=None)
            for reader in found.readers
            if not reader.succeeded and reader.age is not None and reader.uuid not in self._silent
        ]
        self._failing = {reader: self._failing.get(reader, now) for reader in failing}
        lasting = [r for r, since in self._failing.items() if now - since >= self._patience]
        problems = tuple(dict.fromkeys(map(self._problem_of, lasting)))
        if problems != self.problems:
            self.problems = problems
            self._on_problems()

    def _problem_of(self, reader: ReaderState) -> Problem:
        why = "; ".join(self._problems.get(reader.uuid, ()))
        what = f"GPU {reader.gpu}" if reader.gpu else "the driver"
        return Problem(
            Code.READER,
            f"not all values of {what} can be read{f': {why}' if why else ''}",
            "look for NVRM lines in the kernel log (dmesg)",
            gpu=reader.uuid,
        )

    def _waited(self) -> None:
        answer = self._events.answer
        if answer is not None:
            self._on_listener(answer)

    def _heard(self, events: tuple[Event, ...]) -> None:
        for hear in self._on_events:
            try:
                hear(events)
            except Exception:  # as above
                log.exception("what happened to the GPUs cannot be used")

    # --- processes --------------------------------------------------------------------------------

    async def _follow_processes(self) -> None:
        while True:
            await self.list_processes()
            await asyncio.sleep(max(_PROCESSES, self._interval))

    async def list_processes(self) -> None:
        """List them now."""
        looks = await asyncio.gather(*map(self._processes_of, range(self._driver.pool.gpu_count)))
        try:
            self._on_processes(tuple(look for look in looks if look is not None))
        except Exception:  # as above
            log.exception("the processes on the GPUs cannot be used")

    def _is_held(self, index: int) -> bool:
        known = self._sampler.latest if self._sampler else ()
        held = self._held()
        return any(one.gpu.index == index and one.gpu.uuid in held for one in known)

    async def _processes_of(self, index: int) -> ProcessSample | None:
        """None where they were not told, or not now."""
        if self._driver.pool.is_busy(index) or self._is_held(index):
            return None
        reader = self._process_readers.setdefault(index, ProcessReader())
        try:
            return await self._driver.pool.visit(
                index, reader.read, what="listing processes", deadline=self._pace.deadline
            )
        except DriverError:
            return None  # the rounds tell how this GPU fares
