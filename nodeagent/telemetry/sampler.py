"""Samples all GPUs side by side, in rounds: the selected metrics, and health.

A round reads every GPU that is not busy and waits for them a while; one that hangs is left out and
reported as a failure of its reader, and the others' values are new all the same. A GPU is read in
its own thread between its steps (`GpuPool.visit`), so nothing is asked of an instance while it is
destroyed.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvml_errors import silence_of
from nodeagent.gpu.workers import Postponed
from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.catalogue import Field, TextField, Tier
from nodeagent.metrics.samples import Subject
from nodeagent.plan.steps import DestroyGpuInstance, Step
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.fields import make_plan
from nodeagent.telemetry.gpu_reader import GpuReader, NodeSampleReader
from nodeagent.telemetry.samples import GpuSample, NodeSample, SampleBatch

Sample = TypeVar("Sample", GpuSample, NodeSample)

_TIERS = (Tier.FAST, Tier.SLOW)
_ONLY_FAST = frozenset({Tier.FAST})
_ALL_TIERS = frozenset(_TIERS)


class Intervals(Struct, frozen=True):
    """Seconds. `patience`: how long a round waits for its GPUs before it goes on without them;
    `stagger`: how long for one before it begins the next. `deadline`: after it a call counts as
    hanging, for the driver's steps too.
    """

    slow: float = 30.0
    patience: float = 0.5
    stagger: float = 0.02
    deadline: float = 10.0


class _GpuState(Struct):
    """One GPU. `changed`: ids of the instances destroyed since the last sample, if any; None: no
    step was taken. From `overdue_at` on its reading gives way to observations and steps no longer.
    """

    index: int
    reader: GpuReader
    last_good: float  # uptime of the last answer; before the first, of the first attempt
    states: dict[Tier, ReaderState]
    overdue_at: float
    last: GpuSample | None = None  # the last one that ended
    failure: DriverError | None = None  # of the last reading
    changed: set[int] | None = None
    task: asyncio.Task[None] | None = None
    slow_at: float = 0.0
    lost: bool = False

    @property
    def uuid(self) -> str:
        return self.last.gpu.uuid if self.last else ""

    def note_change(self, instances: Iterable[int]) -> None:
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
        held: Callable[[], AbstractSet[str]] = frozenset,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._held = held
        self._clock = clock
        self._reading_plan = make_plan(fields, texts)
        self._intervals = intervals or Intervals()
        self._uptime = uptime
        self._gpus: list[_GpuState] = []
        self._batch = SampleBatch()  # what is new since the last round
        self._node = NodeSampleReader(self._reading_plan, clock)
        self._node_state = ReaderState("node")
        self._node_task: asyncio.Task[None] | None = None
        self._node_sample: NodeSample | None = None  # if it is new since the last round
        self._node_due_at = 0.0
        self._node_last_good: float | None = None
        self._unsubscribe: Callable[[], None] | None = driver.applied.subscribe(self._step_ended)

    def close(self) -> None:
        """Wait for no GPU any more; calls that were begun end by themselves."""
        if self._unsubscribe:
            self._unsubscribe()
            self._unsubscribe = None
        for task in (self._node_task, *(gpu.task for gpu in self._gpus)):
            if task is not None:
                task.cancel()

    def _step_ended(self, step: Step | None) -> None:
        destroyed = (step.instance,) if isinstance(step, DestroyGpuInstance) else ()
        for gpu in self._gpus:
            if step and gpu.uuid == step.gpu:
                gpu.note_change(destroyed)

    # --- a round ------------------------------------------------------------------------------

    async def round(self, *, only_changed: bool = False) -> SampleBatch:
        """Read all that can be read, or `only_changed` GPUs and those that were never read; a
        GPU's or the driver's failure is reported and not raised.
        """
        now = self._clock()
        count = self._driver.pool.gpu_count
        vanished = self._gpus[count:]
        del self._gpus[count:]  # those behind a GPU that is gone have other numbers now
        for gpu in vanished:
            if gpu.task is not None:
                gpu.task.cancel()
        self._gpus += map(self._make_state, range(len(self._gpus), count))
        tasks = await self._begin(now, only_changed=only_changed)
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=self._intervals.patience)
            for task in done:
                if not task.cancelled():  # by `close`, which is no reason to cancel the caller
                    task.result()  # raises only faults of the program
        lost = [gpu for gpu in self._gpus if gpu.lost]
        batch, self._batch = self._batch, SampleBatch()
        batch.gone = tuple(_key(tier, gpu.index) for gpu in (*vanished, *lost) for tier in _TIERS)
        batch.latest = tuple(g.last for g in self._gpus if g.last is not None and not g.lost)
        batch.readers = self._readers()
        # The last of each; one that was slow may have been read twice.
        newest = {reading.uuid: reading for reading in batch.gpus}
        batch.gpus = sorted(newest.values(), key=lambda reading: reading.index)
        self._add_node(batch)
        return batch

    @property
    def is_behind(self) -> bool:
        """Whether a GPU was changed and is not read yet, because it was busy."""
        held = self._held()
        return any(
            gpu.changed is not None
            and gpu.task is None
            and gpu.failure is None
            and gpu.uuid not in held
            for gpu in self._gpus
        )

    def _make_state(self, index: int) -> _GpuState:
        reader = GpuReader(self._reading_plan, self._clock)
        states = {tier: ReaderState(tier.value, gpu=str(index)) for tier in _TIERS}
        overdue_at = self._clock() + self._intervals.slow
        return _GpuState(index, reader, self._uptime(), states, overdue_at)

    async def _begin(self, now: float, *, only_changed: bool) -> set[asyncio.Task[None]]:
        """Begin to read all that can be read; return all tasks that run, or have just ended."""
        held, tasks = self._held(), set[asyncio.Task[None]]()
        for gpu in self._gpus[: self._driver.pool.gpu_count]:
            if only_changed and gpu.changed is None and gpu.last is not None:
                continue
            free = gpu.task is None and not self._driver.pool.is_busy(gpu.index)
            if free and self._names(gpu)[0] not in held:
                tiers = _ALL_TIERS if now >= gpu.slow_at else _ONLY_FAST
                gpu.task = asyncio.create_task(self._visit(gpu, tiers))
                tasks.add(gpu.task)
                # Threads that want the interpreter at the same time cost twice as much.
                await asyncio.wait({gpu.task}, timeout=self._intervals.stagger)
        if self._node_task is None and now >= self._node_due_at:
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
                gives_way=self._clock() < gpu.overdue_at,
            )
            sample = await _checked(visit)
        except Postponed:
            if changed is not None:
                gpu.note_change(changed)
        except DriverError as error:
            if changed is not None:
                gpu.note_change(changed)  # it was not read
            self._failed(gpu, tiers, error)
        else:
            self._succeeded(gpu, tiers, sample)
        finally:
            gpu.task = None

    def _succeeded(self, gpu: _GpuState, tiers: frozenset[Tier], sample: GpuSample) -> None:
        gpu.last, gpu.failure, gpu.lost = sample, None, False
        gpu.last_good = self._uptime()
        if Tier.SLOW in tiers:
            gpu.slow_at = sample.at + self._intervals.slow
            gpu.overdue_at = gpu.slow_at + self._intervals.slow
        for tier in tiers:
            gpu.states[tier] = _state(gpu.states[tier], sample)
        self._batch.samples |= {_key(tier, gpu.index): s for tier, s in sample.samples.items()}
        if sample.problems:
            # A GPU that answers slowly may be read twice for one batch, the second time without the
            # slow tier.
            earlier = self._batch.problems.get(gpu.uuid, ())
            self._batch.problems[gpu.uuid] = tuple(dict.fromkeys((*earlier, *sample.problems)))
        answer = Answer(last=gpu.last_good)
        self._batch.gpus.append(replace(sample.health, answer=answer))

    def _failed(self, gpu: _GpuState, tiers: frozenset[Tier], error: DriverError) -> None:
        gpu.failure = error
        # A GPU that is gone fails for both tiers, also the one that was not due.
        if isinstance(error, GpuLost):
            tiers, gpu.slow_at = _ALL_TIERS, 0.0
        for tier in tiers:
            gpu.states[tier] = replace(gpu.states[tier], succeeded=False)
        uuid, address = self._names(gpu)
        if uuid:
            gpu.lost = gpu.lost or isinstance(error, GpuLost)
            self._batch.problems[uuid] = (str(error),)
            answer = Answer(silence_of(error), gpu.last_good, error.message)
            self._batch.gpus.append(GpuReading(uuid, gpu.index, address, answer=answer))

    async def _ask_node(self) -> None:
        try:
            sample = await _checked(
                self._driver.pool.ask(self._node.read, what="sampling the node")
            )
        except DriverError as error:
            self._node_state = replace(self._node_state, succeeded=False)
            self._batch.answer = Answer(silence_of(error), self._node_last_good, error.message)
        else:
            self._node_sample = sample
            self._node_last_good = self._uptime()
            self._node_due_at = sample.at + self._intervals.slow
            self._node_state = _state(self._node_state, sample)
            self._batch.samples["node"] = sample.sample
            self._batch.answer = Answer(last=self._node_last_good)
        finally:
            self._node_task = None

    def _add_node(self, batch: SampleBatch) -> None:
        """Add UUIDs and addresses of the GPUs that NVML lists, if the node was read just now. A GPU
        that hangs and has never told its UUID is reported as the node's failure.
        """
        gpus = self._gpus[: self._driver.pool.gpu_count]
        failed = batch.answer is not None and batch.answer.silence is not None
        hanging = (g for g in gpus if isinstance(g.failure, DeadlineExceeded))
        unnamed = next((g for g in hanging if not self._names(g)[0]), None)
        if unnamed is not None and unnamed.failure is not None and not failed:
            error = unnamed.failure
            batch.answer = Answer(silence_of(error), unnamed.last_good, error.message)
        node, self._node_sample = self._node_sample, None
        if node is None:
            return
        batch.addresses = tuple(address for _, address in map(self._names, gpus) if address)
        listed = [self._names(gpu)[0] for gpu in self._gpus[: node.count]]
        if len(listed) == node.count and all(listed):  # each GPU has told its UUID
            batch.known = frozenset(listed)

    @property
    def whole_subjects(self) -> Mapping[str, Subject]:
        """The subjects for values of whole GPUs, by UUID, of the GPUs that were read so far."""
        known = [gpu.last for gpu in self._gpus if gpu.last is not None]
        return {sample.gpu.uuid: sample.whole for sample in known}

    def _readers(self) -> tuple[ReaderState, ...]:
        states = [
            replace(state, uuid=gpu.uuid) for gpu in self._gpus for state in gpu.states.values()
        ]
        return (*states, self._node_state)

    def _names(self, gpu: _GpuState) -> tuple[str, str]:
        """UUID and PCI address, also of a GPU that failed as soon as it was sampled; empty for one
        that never gave them.
        """
        if gpu.last is not None:
            return gpu.last.gpu.uuid, gpu.last.gpu.pci_bus_id
        known = self._driver.known(self._driver.pool[gpu.index])
        return known.uuid, known.pci_bus_id


async def _checked(reading: Coroutine[object, object, Sample]) -> Sample:
    """Await the reading; an unexpected answer of the driver is a failure of this GPU alone."""
    try:
        return await reading
    except (DriverError, AssertionError, Postponed):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise DriverError.of("unreadable", why=why) from error


def _key(tier: Tier, index: int) -> str:
    return f"{tier.value}/{index}"


def _state(before: ReaderState, sample: GpuSample | NodeSample) -> ReaderState:
    succeeded = not sample.problems
    return replace(before, succeeded=succeeded, at=sample.at, duration=sample.seconds)
