"""Samples all GPUs: what was chosen of metrics, and health, in rounds and side by side.

A round asks every GPU that is not busy and waits for them a while; one that hangs is left out and
told as a failure of its reader, and the others' values are new all the same. A GPU is asked in its
own thread between its steps (`Driver.visit`), so nothing is asked of an instance while it is
destroyed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeVar

from nodeagent.errors import DeadlineExceeded, DriverError, GpuLost
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvml_errors import silence_of
from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_metrics import ReaderState
from nodeagent.metrics.catalogue import Field, TextField, Tier
from nodeagent.metrics.samples import SampleSet, Subject
from nodeagent.plan.steps import DestroyGpuInstance, Step
from nodeagent.telemetry.gpu_reader import GpuReader
from nodeagent.telemetry.health_readings import reading_of, silent
from nodeagent.telemetry.node_reader import NodeReader, NodeSample
from nodeagent.telemetry.plan import make_plan
from nodeagent.telemetry.sample import GpuSample
from nodeagent.telemetry.sample_batch import SampleBatch

Look = TypeVar("Look", GpuSample, NodeSample)

_TIERS = (Tier.FAST, Tier.SLOW)
_SOON = frozenset({Tier.FAST})
_ALL = frozenset({Tier.FAST, Tier.SLOW})


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `patience`: how long a round waits for its GPUs before it is told without them;
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
    at: float | None = None  # monotonic, of the last look that ended
    seconds: float | None = None


@dataclass(slots=True)
class _Post:
    """One GPU. `changed`: instances known to be others since the last look, None for none."""

    index: int
    reader: GpuReader
    begun: float  # uptime
    readings: dict[Tier, _Reading] = field(
        default_factory=lambda: {tier: _Reading() for tier in _TIERS}
    )
    look: GpuSample | None = None  # the last one that ended
    news: GpuSample | DriverError | None = None
    failure: DriverError | None = None  # of the last look
    changed: set[int] | None = None
    task: asyncio.Task[None] | None = None
    slow_at: float = 0.0
    last_good: float | None = None
    lost: bool = False

    @property
    def uuid(self) -> str:
        return self.look.gpu.uuid if self.look else ""

    def note(self, instances: Iterable[int]) -> None:
        """Instances are others now, or may be."""
        self.changed = {*(self.changed or ()), *instances}


class Sampler:
    """Belongs to one event loop and to a driver that was entered; `run` it, or ask for rounds.

    `fields` and `texts` are those of the selection. `held` are UUIDs of GPUs that are not to be
    asked. `uptime` gives seconds since boot, `clock` seconds of which only differences count.
    """

    def __init__(
        self,
        driver: Driver,
        fields: Iterable[Field],
        texts: Iterable[TextField] = (),
        *,
        pace: Pace | None = None,
        health: bool = True,
        held: Callable[[], AbstractSet[str]] = frozenset,
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._held = held
        self._clock = clock
        self._plan = make_plan(fields, texts)
        self._pace = pace or Pace()
        self._health = health
        self._uptime = uptime
        self._posts: list[_Post] = []
        self._vanished: tuple[int, ...] = ()  # since the last round
        self._node = NodeReader(self._plan, clock)
        self._node_reading = _Reading()
        self._node_task: asyncio.Task[None] | None = None
        self._node_news: NodeSample | DriverError | None = None
        self._node_at = 0.0
        self._node_good: float | None = None
        driver.taken.append(self._step_taken)

    async def run(self, deliver: Callable[[SampleBatch], None]) -> None:
        """A round each period until cancelled; a late one is not made up for."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            while True:
                deliver(await self.round())
                now = loop.time()
                begin += self._pace.fast * max(1, -(-(now - begin) // self._pace.fast))
                await asyncio.sleep(begin - now)
        finally:
            self.close()

    def close(self) -> None:
        """Wait for no GPU any more; calls that were begun end by themselves."""
        if self._step_taken in self._driver.taken:
            self._driver.taken.remove(self._step_taken)
        for task in (self._node_task, *(post.task for post in self._posts)):
            if task is not None:
                task.cancel()

    def layout_changed(self, uuid: str, instances: Iterable[int] = ()) -> None:
        """Look again which instances a GPU has; those with these ids are new or gone for sure."""
        for post in self._posts:
            if post.uuid == uuid:
                post.note(instances)

    def _step_taken(self, step: Step) -> None:
        destroyed = (step.instance,) if isinstance(step, DestroyGpuInstance) else ()
        self.layout_changed(step.gpu, destroyed)

    # --- a round ------------------------------------------------------------------------------

    async def round(self) -> SampleBatch:
        """Ask all that can be asked; a GPU's or the driver's failure is told and not raised."""
        now = self._clock()
        count = self._driver.pool.gpu_count
        self._vanished = tuple(post.index for post in self._posts[count:])
        del self._posts[count:]  # those behind a GPU that is gone have other numbers now
        for index in range(len(self._posts), count):
            self._posts.append(
                _Post(
                    index,
                    GpuReader(self._plan, health=self._health, clock=self._clock),
                    self._uptime(),
                )
            )
        tasks = await self._begin(now)
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=self._pace.patience)
            for task in done:
                if not task.cancelled():  # by `close`, which is no reason to cancel who waits here
                    task.result()  # it raises nothing but what should never be
        return self._told()

    async def _begin(self, now: float) -> set[asyncio.Task[None]]:
        """Begin to ask all that can be asked; what is under way, or was until just now."""
        held, tasks = self._held(), set[asyncio.Task[None]]()
        for post in self._posts[: self._driver.pool.gpu_count]:
            free = post.task is None and not self._driver.pool.is_busy(post.index)
            if free and self._names(post)[0] not in held:
                tiers = _ALL if now >= post.slow_at else _SOON
                post.task = asyncio.create_task(self._visit(post, tiers))
                tasks.add(post.task)
                # Threads that want the interpreter at the same time cost twice as much.
                await asyncio.wait({post.task}, timeout=self._pace.stagger)
        if self._node_task is None and now >= self._node_at:
            self._node_task = asyncio.create_task(self._ask_node())
        under_way = (self._node_task, *(post.task for post in self._posts))
        return tasks | {task for task in under_way if task is not None}

    async def _visit(self, post: _Post, tiers: frozenset[Tier]) -> None:
        changed, post.changed = post.changed, None
        try:
            visit = self._driver.pool.visit(
                post.index,
                lambda card: post.reader.look(card, self._driver.pool.session, tiers, changed),
                what="sampling it",
                deadline=self._pace.deadline,
            )
            look = await _as_told(visit)
        except DriverError as error:
            post.news = post.failure = error
            if changed is not None:
                post.note(changed)  # it was not looked at
            # A GPU that is gone is gone for what is read of it seldom, too.
            if isinstance(error, GpuLost):
                tiers, post.slow_at = _ALL, 0.0
            for tier in tiers:
                post.readings[tier].succeeded = False
        else:
            post.news = post.look = look
            post.failure = None
            post.last_good = self._uptime()
            for tier in tiers:
                post.readings[tier] = _Reading(not look.problems, look.at, look.seconds)
            if Tier.SLOW in tiers:
                post.slow_at = look.at + self._pace.slow
        finally:
            post.task = None

    async def _ask_node(self) -> None:
        try:
            look = await _as_told(self._driver.pool.ask(self._node.look, what="sampling the node"))
        except DriverError as error:
            self._node_news = error
            self._node_reading.succeeded = False
        else:
            self._node_news = look
            self._node_good = self._uptime()
            self._node_at = look.at + self._pace.slow
            self._node_reading = _Reading(not look.problems, look.at, look.seconds)
        finally:
            self._node_task = None

    # --- what it told ---------------------------------------------------------------------------

    def _told(self) -> SampleBatch:
        samples: dict[str, SampleSet] = {}
        gpus: list[GpuReading] = []
        modes: dict[str, Mapping[str, int]] = {}
        problems: dict[str, tuple[str, ...]] = {}
        gone = [_name(tier, index) for index in self._vanished for tier in _TIERS]
        for post in self._posts:
            news, post.news = post.news, None
            if isinstance(news, GpuSample):
                post.lost = False
                samples |= {_name(tier, post.index): s for tier, s in news.samples.items()}
                if news.problems:
                    problems[post.uuid] = news.problems
                if news.slow_health is not None:
                    modes[post.uuid] = news.slow_health.modes
                if self._health:
                    gpus.append(reading_of(news, post.last_good))
            elif news is not None:
                uuid, address = self._names(post)
                if uuid:
                    problems[uuid] = (str(news),)
                    last = post.begun if post.last_good is None else post.last_good
                    gpus.append(silent(uuid, post.index, address, news, last))
                    post.lost = post.lost or isinstance(news, GpuLost)
            if post.lost:
                gone += [_name(tier, post.index) for tier in _TIERS]
        node, self._node_news = self._node_news, None
        if isinstance(node, NodeSample):
            samples["node"] = node.sample
        return SampleBatch(
            at=self._uptime(),
            samples=samples,
            slices=self.slices,
            gone=tuple(gone),
            readers=self.readers,
            gpus=tuple(gpus),
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
            post.uuid: post.look.slices
            for post in self._posts
            if post.look is not None and post.look.slices and not post.lost
        }

    @property
    def wholes(self) -> Mapping[str, Subject]:
        """The GPUs that were asked, by UUID, each as the subject of values of its own."""
        looks = [post.look for post in self._posts if post.look is not None]
        return {look.gpu.uuid: look.whole for look in looks}

    @property
    def looks(self) -> tuple[GpuSample, ...]:
        """The last look at each GPU that is not lost."""
        return tuple(p.look for p in self._posts if p.look is not None and not p.lost)

    @property
    def readers(self) -> tuple[ReaderState, ...]:
        """How each reader fares: one for each tier and GPU, and one for the node."""
        now = self._clock()
        states = [
            _state(tier.value, reading, now, str(post.index), post.uuid)
            for post in self._posts
            for tier, reading in post.readings.items()
        ]
        return (*states, _state("node", self._node_reading, now))

    def _known(self, node: NodeSample | DriverError | None) -> frozenset[str] | None:
        """UUIDs of the GPUs that NVML lists; None while one of them was not asked yet."""
        if not isinstance(node, NodeSample):
            return None
        there = [self._names(post)[0] for post in self._posts[: node.count]]
        return frozenset(there) if len(there) == node.count and all(there) else None

    def _addresses(self) -> tuple[str, ...]:
        names = map(self._names, self._posts[: self._driver.pool.gpu_count])
        return tuple(address for _, address in names if address)

    def _names(self, post: _Post) -> tuple[str, str]:
        """UUID and PCI address, also of a GPU that failed as soon as it was sampled; empty for one
        that never told.
        """
        if post.look is not None:
            return post.look.gpu.uuid, post.look.gpu.pci_bus_id
        known = self._driver.known(post.index)
        return known.uuid, known.pci_bus_id

    def _answer(self, node: NodeSample | DriverError | None) -> Answer | None:
        """A GPU that hangs and was never named is told as trouble of the node."""
        if isinstance(node, DriverError):
            return Answer(silence_of(node), self._node_good, str(node))
        for post in self._posts[: self._driver.pool.gpu_count]:
            if isinstance(post.failure, DeadlineExceeded) and not self._names(post)[0]:
                return Answer(silence_of(post.failure), post.begun, str(post.failure))
        return None if node is None else Answer(last=self._node_good)


async def _as_told(asked: Coroutine[object, object, Look]) -> Look:
    """What was asked for. An answer that nobody thought of is that GPU's failure, and no more."""
    try:
        return await asked
    except (DriverError, AssertionError):
        raise
    except Exception as error:
        raise DriverError(
            f"what the driver told cannot be read: {type(error).__name__}: {error}",
            code=None,
            name="Unreadable",
            call="",
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
