"""Reads one GPU and its instances, in the GPU's own thread.

A reading covers the tiers that are due: calls that several of them need are made once, field values
in one batch, GPM by one sample of the GPU or of each instance. What the GPU does not have is asked
once and then left out, until NVML is started anew or, for what depends on it, the MIG layout
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import MOST_LINKS, Device
from nodeagent.gpu.nvml_errors import INVALID_ARGUMENT, NOT_FOUND
from nodeagent.health.readings import GpuReading, InstanceReading
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import GpuIdentity, NvLink, SampleSet, Subject, WholeGpu, by_field
from nodeagent.telemetry.fields import Plan, Rates, ReadValue, Rows, Target, read_rows, read_texts
from nodeagent.telemetry.gpm import GpmMetrics, GpmTrail
from nodeagent.telemetry.health import health_fields, read_health, read_instance, read_modes
from nodeagent.telemetry.layout import Layout, Part
from nodeagent.telemetry.nvml_reader import NvmlReader, Standing
from nodeagent.telemetry.samples import GpuSample

_STALE = frozenset({INVALID_ARGUMENT, NOT_FOUND})


@dataclass(slots=True)
class _Found:
    """What is found in one reading: values by tier, instances for health, and failed calls."""

    values: dict[Tier, list[ReadValue]]
    instances: list[InstanceReading] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _VanishedPart(Exception):
    """An instance is not there any more, or is another one now."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class GpuReader:
    """Keeps between readings what makes the next one cheap. `health`: read that too."""

    def __init__(
        self, plan: Plan, *, health: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._health = health
        self._uuid = ""
        self._layout = Layout()
        self._links: tuple[Subject, ...] = ()
        self._begin_anew(-1)

    def _begin_anew(self, session: int) -> None:
        self._session = session
        self._standing = Standing()
        self._free_samples: list[Any] = []
        self._gpm = GpmTrail(self._free_samples)
        self._rates = Rates(self._clock)
        self._layout.forget()
        self._layout_known = False
        self._metrics: dict[str, GpmMetrics] = {}
        self._texts: dict[int, str] = {}

    def read(
        self,
        gpu: GpuDevice,
        session: int,
        tiers: frozenset[Tier],
        gone: Collection[int] | None,
    ) -> GpuSample:
        """Read the due tiers of a GPU, FAST, SLOW or both. Raises DriverError.

        `gone` are ids of instances that were destroyed or made since the last reading, None when
        nothing is known to have changed.
        """
        if session != self._session:
            self._begin_anew(session)
        try:
            return self._read(gpu, tiers, gone)
        except DriverError as error:
            if error.code not in _STALE:
                raise
        gpu.give_up_handle()
        self._begin_anew(session)
        return self._read(gpu, tiers, ())

    def _read(
        self, gpu: GpuDevice, tiers: frozenset[Tier], gone: Collection[int] | None
    ) -> GpuSample:
        began = self._clock()
        device = gpu.handle
        if gpu.uuid != self._uuid:
            self._begin_anew(self._session)
            self._identify(gpu)
        if gone is not None or not self._layout_known or Tier.SLOW in tiers:
            self._read_layout(gpu, gone or ())
        found = _Found({tier: [] for tier in tiers})
        reader = NvmlReader(device, self._standing)
        health, modes = self._read_whole(gpu, reader, tiers, found)
        instances = self._read_parts(gpu, device, tiers, found)
        if health is not None and Tier.SLOW in tiers:
            health = replace(health, instances=instances)
        ended = self._clock()
        return GpuSample(
            gpu=self._identity,
            whole=self._whole,
            at=ended,
            seconds=ended - began,
            slices=self._layout.subjects,
            samples={tier: self._sample(tier, values) for tier, values in found.values.items()},
            health=health,
            modes=modes,
            problems=tuple(found.problems),
        )

    def _identify(self, gpu: GpuDevice) -> None:
        known = gpu.identity()
        minor = gpu.index if known.minor is None else known.minor
        self._uuid = known.uuid
        self._identity = GpuIdentity(gpu.index, known.uuid, known.pci_bus_id, minor, known.name)
        self._whole = Subject(WholeGpu(self._identity))
        self._links = tuple(Subject(NvLink(self._identity, n)) for n in range(MOST_LINKS))

    def _read_layout(self, gpu: GpuDevice, gone: Collection[int]) -> None:
        before = self._layout.generation
        self._layout_known = False  # until it was read to its end
        self._layout.read(gpu, self._identity, self._free_samples, gone)
        self._layout_known = True
        if self._layout.generation != before:
            # What the GPU as a whole reports depends on the mode and on whether it has instances.
            self._standing.refused.clear()
            self._gpm.end()

    def _sample(self, tier: Tier, values: list[ReadValue]) -> SampleSet:
        texts = {self._uuid: self._texts} if tier is Tier.SLOW and self._texts else {}
        return SampleSet(by_field(values), {}, texts)

    # --- the GPU as a whole -------------------------------------------------------------------

    def _read_whole(
        self, gpu: GpuDevice, reader: NvmlReader, tiers: frozenset[Tier], found: _Found
    ) -> tuple[GpuReading | None, dict[str, int] | None]:
        slow = Tier.SLOW in tiers
        plan, once = self._plan.whole, self._standing.read_once
        due = [plan[tier] for tier in tiers]
        if slow and once is None:
            due.append(plan[Tier.ONCE])
        fields = [one for rows in due for one in rows.field_ids]
        if self._health:
            fields += health_fields(slow=slow)
        reader.read_fields(fields)

        def values(rows: Rows) -> list[ReadValue]:
            return list(
                read_rows(
                    rows,
                    Target(
                        reader,
                        self._whole,
                        self._rates,
                        lambda: self._read_gpm("whole", rows, reader, self._gpm, reader.device),
                        self._links,
                        lambda: _others(gpu),
                    ),
                )
            )

        for tier in tiers:
            found.values[tier] += values(plan[tier])
        if slow:
            if once is None:
                once = self._standing.read_once = values(plan[Tier.ONCE])
                self._texts = dict(read_texts(self._plan, reader))
            found.values[Tier.SLOW] += once
        health, modes = None, None
        if self._health:
            known = self._identity
            reading = GpuReading(known.uuid, known.index, known.pci_bus_id, mig=self._layout.mig)
            health = read_health(reader, reading, slow=slow)
            modes = read_modes(reader) if slow else None
        if reader.doubted:
            nvml.uuid(gpu.handle)  # raises where it is the handle that is wrong
            reader.resolve_doubts()
        found.problems += reader.problems.values()
        return health, modes

    def _read_gpm(
        self, kind: str, rows: Rows, reader: NvmlReader, trail: GpmTrail, gpu: Device
    ) -> dict[int, float]:
        if kind not in self._metrics:
            self._metrics[kind] = GpmMetrics(rows.gpm_metrics)
        metrics = self._metrics[kind]
        return reader.ask(("gpm",), lambda: trail.step(gpu, metrics)) or {}

    # --- its instances ------------------------------------------------------------------------

    def _read_parts(
        self, gpu: GpuDevice, device: Device, tiers: frozenset[Tier], found: _Found
    ) -> tuple[InstanceReading, ...] | None:
        """All instances; when one turns out to be gone, those that there are now."""
        try:
            parts = self._try_parts(gpu, device, tiers)
        except _VanishedPart as vanished:
            self._read_layout(gpu, (vanished.number,))
            try:
                parts = self._try_parts(gpu, device, tiers)
            except _VanishedPart:  # the layout keeps changing; the next reading tries again
                self._layout_known = False
                self._layout.parts = {}
                return None
        for tier, values in parts.values.items():
            found.values[tier] += values
        found.problems += parts.problems
        return tuple(parts.instances)

    def _try_parts(self, gpu: GpuDevice, device: Device, tiers: frozenset[Tier]) -> _Found:
        found = _Found({tier: [] for tier in tiers})
        for number, part in self._layout.parts.items():
            reader = NvmlReader(part.device, part.standing)
            for tier in tiers:
                found.values[tier] += self._part_values(device, reader, part, tier)
            if Tier.SLOW in tiers:
                if part.standing.read_once is None:
                    once = self._part_values(device, reader, part, Tier.ONCE)
                    part.standing.read_once = once
                found.values[Tier.SLOW] += part.standing.read_once
                if self._health:
                    found.instances.append(read_instance(reader, part.info))
            if reader.doubted:
                _require_same_part(number, part)
                reader.resolve_doubts()
            found.problems += reader.problems.values()
        return found

    def _part_values(
        self, gpu: Device, reader: NvmlReader, part: Part, tier: Tier
    ) -> list[ReadValue]:
        rows = self._plan.part[tier]
        target = Target(
            reader,
            part.subject,
            self._rates,
            lambda: self._read_gpm("part", rows, reader, part.gpm, gpu),
        )
        return list(read_rows(rows, target))


def _require_same_part(number: int, part: Part) -> None:
    """Raises _VanishedPart where the handle is not that of the instance any more."""
    try:
        now = nvml.gpu_instance_id(part.device)
    except DriverError as error:
        if error.code not in _STALE:
            raise
        raise _VanishedPart(number) from error
    if now != number:
        raise _VanishedPart(number)


def _others(gpu: GpuDevice) -> list[tuple[int, Device]]:
    """The other GPUs that answer, by index."""
    found: list[tuple[int, Device]] = []
    for index in range(nvml.device_count()):
        if index == gpu.index:
            continue
        try:
            found.append((index, nvml.device_by_index(index)))
        except DriverError:
            continue  # a lost GPU has no peers
    return found
