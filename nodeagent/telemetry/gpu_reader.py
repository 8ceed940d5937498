"""Reads one GPU and its instances, in the GPU's own thread.

A look reads the tiers that are due: calls that several of them need are made once, field values in
one batch, GPM by one sample of the GPU or of each instance. What the card does not have is asked
once and then left out, until NVML is started anew or, for what depends on it, the MIG layout
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from nodeagent.errors import DriverError
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import MOST_LINKS, Device
from nodeagent.gpu.nvml_calls import (
    GpmMetrics,
    GpmSamples,
    member,
    take_instance_sample,
    take_sample,
)
from nodeagent.gpu.nvml_errors import INVALID_ARGUMENT, NOT_FOUND
from nodeagent.health.readings import InstanceReading
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import GpuIdentity, NvLink, SampleSet, Subject, WholeGpu, by_field
from nodeagent.telemetry import values
from nodeagent.telemetry.gpm_trail import GpmTrail
from nodeagent.telemetry.health import (
    FastHealth,
    SlowHealth,
    health_fields,
    read_fast,
    read_instance,
    read_slow,
)
from nodeagent.telemetry.layout import Layout, Part
from nodeagent.telemetry.nvml_reader import NvmlReader, Standing
from nodeagent.telemetry.plan import Asks, Plan
from nodeagent.telemetry.sample import GpuSample
from nodeagent.telemetry.texts import as_text
from nodeagent.telemetry.values import Told

_STALE = frozenset({INVALID_ARGUMENT, NOT_FOUND})
_GPM = ("gpm",)


@dataclass(slots=True)
class _Found:
    """The values of a look, by tier."""

    told: dict[Tier, list[Told]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, tier: Tier, told: Iterable[Told]) -> None:
        self.told.setdefault(tier, []).extend(told)


class _VanishedPart(Exception):
    """An instance is not there any more, or is another one now."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class GpuReader:
    """Remembers between looks what makes the next one cheap. `health`: read that too."""

    def __init__(
        self, plan: Plan, *, health: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._health = health
        self._session = -1
        self._uuid = ""
        self._layout = Layout()
        self._layout_known = False
        self._links: tuple[Subject, ...] = ()
        self._begin_anew(-1)

    def _begin_anew(self, session: int) -> None:
        self._session = session
        self._standing = Standing()
        self._samples = GpmSamples()
        self._gpm = GpmTrail(self._samples)
        self._rates = values.Rates(self._clock)
        self._layout.forget()
        self._layout_known = False
        self._once: dict[int, list[Told]] = {}
        self._metrics: dict[str, GpmMetrics | None] = {}
        self._texts: dict[int, str] = {}

    def look(
        self, card: GpuDevice, session: int, tiers: frozenset[Tier], gone: Collection[int] | None
    ) -> GpuSample:
        """Read the due tiers of a GPU, FAST, SLOW or both. Raises DriverError.

        `gone` are ids of instances that were destroyed or made since the last look, None when
        nothing is known to have changed.
        """
        if session != self._session:
            self._begin_anew(session)
        try:
            return self._look(card, tiers, gone)
        except DriverError as error:
            if error.code not in _STALE:
                raise
        card.give_up_handle()
        self._begin_anew(session)
        return self._look(card, tiers, ())

    def _look(
        self, card: GpuDevice, tiers: frozenset[Tier], gone: Collection[int] | None
    ) -> GpuSample:
        began = self._clock()
        device = card.handle
        if card.uuid != self._uuid:
            self._begin_anew(self._session)
            self._identify(card)
        if gone is not None or not self._layout_known or Tier.SLOW in tiers:
            self._read_layout(card, gone or ())
        found = _Found()
        reader = NvmlReader(device, self._standing)
        fast, slow = self._read_whole(card, reader, tiers, found)
        instances = self._read_parts(card, device, tiers, found)
        ended = self._clock()
        return GpuSample(
            gpu=self._identity,
            whole=self._whole,
            at=ended,
            seconds=ended - began,
            mig=self._layout.mig,
            slices=self._layout.subjects,
            samples={tier: self._sample(tier, found) for tier in tiers},
            fast_health=fast,
            slow_health=slow,
            instances=instances,
            problems=tuple(found.problems),
        )

    def _identify(self, card: GpuDevice) -> None:
        known = card.identity()
        minor = card.index if known.minor is None else known.minor
        self._uuid = known.uuid
        self._identity = GpuIdentity(card.index, known.uuid, known.pci.bus_id, minor, known.name)
        self._whole = Subject(WholeGpu(self._identity))
        self._links = tuple(Subject(NvLink(self._identity, n)) for n in range(MOST_LINKS))

    def _read_layout(self, card: GpuDevice, gone: Collection[int]) -> None:
        before = self._layout.generation
        self._layout_known = False  # until it was read to its end
        self._layout.read(card, self._identity, self._samples, gone)
        self._layout_known = True
        if self._layout.generation != before:
            # What is told of the whole GPU depends on the mode and on whether there are instances.
            self._standing.refused.clear()
            self._gpm.end()

    def _sample(self, tier: Tier, found: _Found) -> SampleSet:
        texts = {self._uuid: self._texts} if tier is Tier.SLOW and self._texts else {}
        return SampleSet(by_field(found.told.get(tier, ())), {}, texts)

    # --- the GPU as a whole -------------------------------------------------------------------

    def _read_whole(
        self, card: GpuDevice, reader: NvmlReader, tiers: frozenset[Tier], found: _Found
    ) -> tuple[FastHealth | None, SlowHealth | None]:
        slow = Tier.SLOW in tiers
        due = [self._plan.whole[tier] for tier in tiers]
        if slow and 0 not in self._once:
            due.append(self._plan.whole[Tier.ONCE])
        wanted = [one for asks in due for one in values.fields_of(asks)]
        if self._health:
            wanted += health_fields(slow=slow)
        reader.read_fields(wanted)
        for tier in tiers:
            found.add(tier, self._told_of_whole(card, reader, self._plan.whole[tier]))
        if slow:
            found.add(Tier.SLOW, self._once_of_whole(card, reader))
        health = (
            (read_fast(reader), read_slow(reader) if slow else None)
            if self._health
            else (None, None)
        )
        if reader.doubted:
            card.nvml.uuid(card.handle)  # raises where it is the handle that is wrong
            reader.resolve_doubts()
        found.problems += reader.problems.values()
        return health

    def _told_of_whole(self, card: GpuDevice, reader: NvmlReader, asks: Asks) -> Iterator[Told]:
        whole, of_link = self._whole, self._links.__getitem__
        yield from values.from_calls(reader, asks, whole)
        yield from values.from_fields(reader, asks, whole, of_link)
        yield from self._rates.read(reader, asks, whole, of_link)
        yield from values.from_links(reader, asks, whole, of_link)
        yield from values.from_verdicts(reader, asks, whole)
        yield from values.from_peers(reader, asks, whole, lambda: _others(card))
        metrics = self._metrics_for("whole", asks)
        if metrics is not None:
            device = reader.device
            told = reader.ask(
                _GPM, lambda: self._gpm.step(lambda sample: take_sample(device, sample), metrics)
            )
            if told is not None:
                yield from values.from_gpm(asks, told, whole, of_link)

    def _once_of_whole(self, card: GpuDevice, reader: NvmlReader) -> list[Told]:
        if 0 not in self._once:
            self._once[0] = list(self._told_of_whole(card, reader, self._plan.whole[Tier.ONCE]))
            self._texts = dict(self._read_texts(reader))
        return self._once[0]

    def _read_texts(self, reader: NvmlReader) -> Iterator[tuple[int, str]]:
        for text, ask in self._plan.texts:
            answer = values.answer_of(reader, ask)
            for wanted in ask.rows:
                if answer is not None:
                    told = member(answer, wanted.items[0]) if wanted.items else answer
                    yield text.id, as_text(text.name, told)

    def _metrics_for(self, kind: str, asks: Asks) -> GpmMetrics | None:
        if not (asks.gpm or asks.gpm_links):
            return None
        if kind not in self._metrics:
            self._metrics[kind] = GpmMetrics(asks.gpm_metrics(MOST_LINKS))
        return self._metrics[kind]

    # --- its instances ------------------------------------------------------------------------

    def _read_parts(
        self, card: GpuDevice, device: Device, tiers: frozenset[Tier], found: _Found
    ) -> tuple[InstanceReading, ...] | None:
        """All instances; when one turns out to be gone, those that there are now."""
        try:
            told, instances = self._try_parts(card, device, tiers)
        except _VanishedPart as vanished:
            self._read_layout(card, (vanished.number,))
            try:
                told, instances = self._try_parts(card, device, tiers)
            except _VanishedPart:  # somebody changes it all the time; the next look sees
                self._layout_known = False
                self._layout.parts = {}
                return None
        for tier in tiers:
            found.add(tier, told.told.get(tier, ()))
        found.problems += told.problems
        return instances

    def _try_parts(
        self, card: GpuDevice, device: Device, tiers: frozenset[Tier]
    ) -> tuple[_Found, tuple[InstanceReading, ...] | None]:
        found = _Found()
        wanted = self._health and Tier.SLOW in tiers
        instances: list[InstanceReading] = []
        for number, part in self._layout.parts.items():
            reader = NvmlReader(part.device, part.standing)
            for tier in tiers:
                found.add(tier, self._told_of_part(device, reader, part, self._plan.part[tier]))
            if Tier.SLOW in tiers:
                found.add(Tier.SLOW, self._once_of_part(device, reader, part))
            if wanted:
                instances.append(read_instance(reader, part.info))
            if reader.doubted:
                _insist_on_part(card, number, part)
                reader.resolve_doubts()
            found.problems += reader.problems.values()
        return found, tuple(instances) if wanted else None

    def _told_of_part(
        self, device: Device, reader: NvmlReader, part: Part, asks: Asks
    ) -> Iterator[Told]:
        yield from values.from_calls(reader, asks, part.subject)
        metrics = self._metrics_for("part", asks)
        if metrics is not None:
            number = part.info.id
            told = reader.ask(
                _GPM,
                lambda: part.gpm.step(
                    lambda sample: take_instance_sample(device, number, sample), metrics
                ),
            )
            if told is not None:
                yield from values.from_gpm(asks, told, part.subject)

    def _once_of_part(self, device: Device, reader: NvmlReader, part: Part) -> list[Told]:
        key = ("once",)
        known: list[Told] | None = part.standing.once.get(key)
        if known is None:
            asks = self._plan.part[Tier.ONCE]
            known = list(self._told_of_part(device, reader, part, asks))
            part.standing.once[key] = known
        return known


def _insist_on_part(card: GpuDevice, number: int, part: Part) -> None:
    """Raises _VanishedPart where the handle is not that of the instance any more."""
    try:
        now = card.nvml.gpu_instance_id(part.device)
    except DriverError as error:
        if error.code not in _STALE:
            raise
        raise _VanishedPart(number) from error
    if now != number:
        raise _VanishedPart(number)


def _others(card: GpuDevice) -> list[tuple[int, Device]]:
    """The other GPUs that answer, by index."""
    found: list[tuple[int, Device]] = []
    for index in range(card.nvml.device_count()):
        if index == card.index:
            continue
        try:
            found.append((index, card.nvml.device_by_index(index)))
        except DriverError:
            continue  # a lost one is reached by nobody
    return found
