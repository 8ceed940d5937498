"""Samples all GPUs side by side, in rounds: the selected metrics, and health.

A round reads every GPU that is not busy and waits for them a while; one that hangs is left out and
reported as a failure of its reader, and the others' values are new all the same. A GPU is read in
its own thread between its steps (`GpuPool.visit`), so nothing is asked of an instance while it is
destroyed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvml_errors import silence_of
from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.catalogue import Field, TextField, Tier
from nodeagent.metrics.samples import SampleSet, Subject
from nodeagent.plan.steps import DestroyGpuInstance, Step
from nodeagent.telemetry.fields import make_plan
from nodeagent.telemetry.gpu_reader import GpuReader
from nodeagent.telemetry.node_reader import NodeReader
from nodeagent.telemetry.samples import GpuSample, NodeSample, SampleBatch

Sample = TypeVar("Sample", GpuSample, NodeSample)

_TIERS = (Tier.FAST, Tier.SLOW)
_SOON = frozenset({Tier.FAST})
_ALL = frozenset({Tier.FAST, Tier.SLOW})


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds. `patience`: how long a round waits for its GPUs before it goes on without them;
    `stagger`: how long for one before the next is begun. `deadline`: after it a call counts as
    hanging, for the driver's steps too.
    """

    fast: float = 1.0
    slow: float = 30.0
    patience: float = 0.5
    stagger: float = 0.02
    deadline: float = 10.0


@dataclass(slots=True)
class _Reading:
    """How one tier of one GPU, or the node, fares."""

    succeeded: bool = False
    at: float | None = None  # monotonic, of the last sample that ended
    seconds: float | None = None


@dataclass(slots=True)
class _GpuState:
    """One GPU. `changed`: instances known to be others since the last sample, None for none."""

    index: int
    reader: GpuReader
    begun: float  # uptime
    readings: dict[Tier, _Reading] = field(
        default_factory=lambda: {tier: _Reading() for tier in _TIERS}
    )
    last: GpuSample | None = None  # the last one that ended
    news: GpuSample | DriverError | None = None
    failure: DriverError | None = None  # of the last sample
    changed: set[int] | None = None
    task: asyncio.Task[None] | None = None
    slow_at: float = 0.0
    last_good: float | None = None
    lost: bool = False

    @property
    def uuid(self) -> str:
        return self.last.gpu.uuid if self.last else ""

    def note_change(self, instances: Iterable[int]) -> None:
        """Instances are others now, or may be."""
        self.changed = {*(self.changed or ()), *instances}


class Sampler:
    """Samples the GPUs of an entered driver, a `round` at a time. Belongs to one event loop.

    `fields` and `texts` are those of the selection. `held` are UUIDs of GPUs that are not to be
    read. `uptime` gives seconds since boot, `clock` seconds of which only differences count.
    """

    def __init__(
        self,
        driver: Driver,
        fields: Iterable[Field],
        texts: Iterable[TextField] = (),
        *,
        intervals: Intervals | None = None,
        health: bool = True,
        held: Callable[[], AbstractSet[str]] = frozenset,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._held = held
        self._clock = clock
        self._plan = make_plan(fields, texts)
        self._intervals = intervals or Intervals()
        self._health = health
        self._uptime = uptime
        self._gpus: list[_GpuState] = []
        self._vanished: tuple[int, ...] = ()  # since the last round
        self._node = NodeReader(self._plan, clock)
        self._node_reading = _Reading()
        self._node_task: asyncio.Task[None] | None = None
        self._node_news: NodeSample | DriverError | None = None
        self._node_at = 0.0
        self._node_good: float | None = None
        driver.after_step.append(self._step_ended)

    def close(self) -> None:
        """Wait for no GPU any more; calls that were begun end by themselves."""
        if self._step_ended in self._driver.after_step:
            self._driver.after_step.remove(self._step_ended)
        for task in (self._node_task, *(gpu.task for gpu in self._gpus)):
            if task is not None:
                task.cancel()

    def _step_ended(self, step: Step) -> None:
        destroyed = (step.instance,) if isinstance(step, DestroyGpuInstance) else ()
        for gpu in self._gpus:
            if gpu.uuid == step.gpu:
                gpu.note_change(destroyed)

    # --- a round ------------------------------------------------------------------------------

    async def round(self) -> SampleBatch:
        """Read all that can be read; a GPU's or the driver's failure is reported and not raised."""
        now = self._clock()
        count = self._driver.pool.gpu_count
        self._vanished = tuple(gpu.index for gpu in self._gpus[count:])
        del self._gpus[count:]  # those behind a GPU that is gone have other numbers now
        for index in range(len(self._gpus), count):
            self._gpus.append(
                _GpuState(
                    index,
                    GpuReader(self._plan, health=self._health, clock=self._clock),
                    self._uptime(),
                )
            )
        tasks = await self._begin(now)
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=self._intervals.patience)
            for task in done:
                if not task.cancelled():  # by `close`, which is no reason to cancel the caller
                    task.result()  # it raises nothing but what should never be
        return self._batch()

    async def _begin(self, now: float) -> set[asyncio.Task[None]]:
        """Begin to read all that can be read; what is under way, or was until just now."""
        held, tasks = self._held(), set[asyncio.Task[None]]()
        for gpu in self._gpus[: self._driver.pool.gpu_count]:
            free = gpu.task is None and not self._driver.pool.is_busy(gpu.index)
            if free and self._names(gpu)[0] not in held:
                tiers = _ALL if now >= gpu.slow_at else _SOON
                gpu.task = asyncio.create_task(self._visit(gpu, tiers))
                tasks.add(gpu.task)
                # Threads that want the interpreter at the same time cost twice as much.
                await asyncio.wait({gpu.task}, timeout=self._intervals.stagger)
        if self._node_task is None and now >= self._node_at:
            self._node_task = asyncio.create_task(self._ask_node())
        under_way = (self._node_task, *(gpu.task for gpu in self._gpus))
        return tasks | {task for task in under_way if task is not None}

    async def _visit(self, gpu: _GpuState, tiers: frozenset[Tier]) -> None:
        changed, gpu.changed = gpu.changed, None
        try:
            visit = self._driver.pool.visit(
                gpu.index,
                lambda device: gpu.reader.read(device, self._driver.pool.session, tiers, changed),
                what="sampling it",
                deadline=self._intervals.deadline,
            )
            sample = await _checked(visit)
        except DriverError as error:
            gpu.news = gpu.failure = error
            if changed is not None:
                gpu.note_change(changed)  # it was not read
            # A GPU that is gone is gone for what is read of it seldom, too.
            if isinstance(error, GpuLost):
                tiers, gpu.slow_at = _ALL, 0.0
            for tier in tiers:
                gpu.readings[tier].succeeded = False
        else:
            gpu.news = gpu.last = sample
            gpu.failure = None
            gpu.last_good = self._uptime()
            for tier in tiers:
                gpu.readings[tier] = _Reading(not sample.problems, sample.at, sample.seconds)
            if Tier.SLOW in tiers:
                gpu.slow_at = sample.at + self._intervals.slow
        finally:
            gpu.task = None

    async def _ask_node(self) -> None:
        try:
            sample = await _checked(
                self._driver.pool.ask(self._node.read, what="sampling the node")
            )
        except DriverError as error:
            self._node_news = error
            self._node_reading.succeeded = False
        else:
            self._node_news = sample
            self._node_good = self._uptime()
            self._node_at = sample.at + self._intervals.slow
            self._node_reading = _Reading(not sample.problems, sample.at, sample.seconds)
        finally:
            self._node_task = None

    # --- the result -----------------------------------------------------------------------------

    def _batch(self) -> SampleBatch:
        samples: dict[str, SampleSet] = {}
        readings: list[GpuReading] = []
        modes: dict[str, Mapping[str, int]] = {}
        problems: dict[str, tuple[str, ...]] = {}
        gone = [_name(tier, index) for index in self._vanished for tier in _TIERS]
        for gpu in self._gpus:
            news, gpu.news = gpu.news, None
            if isinstance(news, GpuSample):
                gpu.lost = False
                samples |= {_name(tier, gpu.index): s for tier, s in news.samples.items()}
                if news.problems:
                    problems[gpu.uuid] = news.problems
                if news.modes is not None:
                    modes[gpu.uuid] = news.modes
                if news.health is not None:
                    readings.append(replace(news.health, answer=Answer(last=gpu.last_good)))
            elif news is not None:
                uuid, address = self._names(gpu)
                if uuid:
                    problems[uuid] = (str(news),)
                    last = gpu.begun if gpu.last_good is None else gpu.last_good
                    answer = Answer(silence_of(news), last, str(news))
                    readings.append(GpuReading(uuid, gpu.index, address, answer=answer))
                    gpu.lost = gpu.lost or isinstance(news, GpuLost)
            if gpu.lost:
                gone += [_name(tier, gpu.index) for tier in _TIERS]
        node, self._node_news = self._node_news, None
        if isinstance(node, NodeSample):
            samples["node"] = node.sample
        return SampleBatch(
            at=self._uptime(),
            samples=samples,
            slices=self.slices,
            gone=tuple(gone),
            readers=self.readers,
            gpus=tuple(readings),
            modes=modes,
            known=self._known(node),
            addresses=self._addresses() if isinstance(node, NodeSample) else None,
            answer=self._answer(node),
            problems=problems,
        )

    @property
    def slices(self) -> Mapping[str, tuple[Subject, ...]]:
        """The instances there are, as far as is known, by the UUID of their GPU."""
        return {
            gpu.uuid: gpu.last.slices
            for gpu in self._gpus
            if gpu.last is not None and gpu.last.slices and not gpu.lost
        }

    @property
    def wholes(self) -> Mapping[str, Subject]:
        """The GPUs that were asked, by UUID, each as the subject of values of its own."""
        known = [gpu.last for gpu in self._gpus if gpu.last is not None]
        return {sample.gpu.uuid: sample.whole for sample in known}

    @property
    def latest(self) -> tuple[GpuSample, ...]:
        """The last sample of each GPU that is not lost."""
        return tuple(gpu.last for gpu in self._gpus if gpu.last is not None and not gpu.lost)

    @property
    def readers(self) -> tuple[ReaderState, ...]:
        """How each reader fares: one for each tier and GPU, and one for the node."""
        now = self._clock()
        states = [
            _state(tier.value, reading, now, str(gpu.index), gpu.uuid)
            for gpu in self._gpus
            for tier, reading in gpu.readings.items()
        ]
        return (*states, _state("node", self._node_reading, now))

    def _known(self, node: NodeSample | DriverError | None) -> frozenset[str] | None:
        """UUIDs of the GPUs that NVML lists; None while one of them was not asked yet."""
        if not isinstance(node, NodeSample):
            return None
        there = [self._names(gpu)[0] for gpu in self._gpus[: node.count]]
        return frozenset(there) if len(there) == node.count and all(there) else None

    def _addresses(self) -> tuple[str, ...]:
        names = map(self._names, self._gpus[: self._driver.pool.gpu_count])
        return tuple(address for _, address in names if address)

    def _names(self, gpu: _GpuState) -> tuple[str, str]:
        """UUID and PCI address, also of a GPU that failed as soon as it was sampled; empty for one
        that never gave them.
        """
        if gpu.last is not None:
            return gpu.last.gpu.uuid, gpu.last.gpu.pci_bus_id
        known = self._driver.known(self._driver.pool[gpu.index])
        return known.uuid, known.pci_bus_id

    def _answer(self, node: NodeSample | DriverError | None) -> Answer | None:
        """A GPU that hangs and was never named is reported as trouble of the node."""
        if isinstance(node, DriverError):
            return Answer(silence_of(node), self._node_good, str(node))
        for gpu in self._gpus[: self._driver.pool.gpu_count]:
            if isinstance(gpu.failure, DeadlineExceeded) and not self._names(gpu)[0]:
                return Answer(silence_of(gpu.failure), gpu.begun, str(gpu.failure))
        return None if node is None else Answer(last=self._node_good)


async def _checked(reading: Coroutine[object, object, Sample]) -> Sample:
    """An unexpected answer of the driver is a failure of this GPU alone."""
    try:
        return await reading
    except (DriverError, AssertionError):
        raise
    except Exception as error:
        raise DriverError(
            f"an answer of the driver cannot be read: {type(error).__name__}: {error}",
            name="Unreadable",
            remedy="report this; the agent knows no such answer",
        ) from error


def _name(tier: Tier, index: int) -> str:
    return f"{tier.value}/{index}"


def _state(name: str, reading: _Reading, now: float, gpu: str = "", uuid: str = "") -> ReaderState:
    return ReaderState(
        name=name,
        succeeded=reading.succeeded,
        age=None if reading.at is None else now - reading.at,
        duration=reading.seconds,
        gpu=gpu,
        uuid=uuid,
    )
