"""Reads one GPU and its instances, in the GPU's own thread; and what concerns the node alone.

A reading covers the tiers that are due: calls that several of them need are made once, field values
in one batch, GPM by one sample of the GPU or of each instance. What the GPU does not have is asked
once and then left out, until NVML is started anew or, for what depends on it, the MIG layout
changes.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml import MAX_LINKS, Device
from nodeagent.gpu.nvml_errors import NOT_KNOWN
from nodeagent.health.readings import GpuReading, InstanceReading
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import (
    GpuIdentity,
    Node,
    NvLink,
    SampleSet,
    Subject,
    WholeGpu,
    by_field,
)
from nodeagent.structs import Struct, field, replace
from nodeagent.telemetry.fields import (
    FieldPlan,
    Rates,
    ReadTarget,
    ReadValue,
    Rows,
    read_rows,
    read_texts,
)
from nodeagent.telemetry.gpm import FreeSamples, GpmMetrics, GpmSampler
from nodeagent.telemetry.health import health_fields, read_health, read_instance
from nodeagent.telemetry.layout import InstanceTracker, SampledInstance
from nodeagent.telemetry.nvml_reader import LastingAnswers, NvmlReader
from nodeagent.telemetry.samples import GpuSample, NodeSample


class _Found(Struct):
    """The results of one reading: values by tier, instances for health, and failed calls."""

    values: dict[Tier, list[ReadValue]]
    instances: list[InstanceReading] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _VanishedPart(Exception):
    """An instance is not there any more, or is another one now."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class GpuReader:
    """Keeps between readings what makes the next one cheap."""

    def __init__(self, plan: FieldPlan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._clock = clock
        self._uuid = ""
        self._layout = InstanceTracker()
        self._session = -1

    def _begin_anew(self, gpu: GpuDevice, session: int) -> None:
        self._session = session
        self._lasting = LastingAnswers()
        self._free_samples = FreeSamples(gpu, session)
        self._gpm = GpmSampler(self._free_samples)
        self._rates = Rates(self._clock)
        self._layout.forget()
        self._layout_known = False
        self._whole_metrics = _gpm_metrics(self._plan.whole)
        self._part_metrics = _gpm_metrics(self._plan.part)
        self._texts: dict[int, str] = {}

    def read(
        self, gpu: GpuDevice, session: int, tiers: frozenset[Tier], gone: Collection[int] | None
    ) -> GpuSample:
        """Read the due tiers of a GPU, FAST, SLOW or both. Raises DriverError.

        `gone` are ids of instances that were destroyed or made since the last reading, None when
        nothing is known to have changed.
        """
        if session != self._session:
            self._begin_anew(gpu, session)
        try:
            return self._read(gpu, tiers, gone)
        except DriverError as error:
            if error.code not in NOT_KNOWN:
                raise
        gpu.give_up_handle()
        self._begin_anew(gpu, session)
        return self._read(gpu, tiers, ())

    def _read(
        self, gpu: GpuDevice, tiers: frozenset[Tier], gone: Collection[int] | None
    ) -> GpuSample:
        began = self._clock()
        device = gpu.handle
        if gpu.uuid != self._uuid:
            self._begin_anew(gpu, self._session)
            self._identify(gpu)
        if gone is not None or not self._layout_known or Tier.SLOW in tiers:
            self._read_layout(gpu, gone or ())
        found = _Found({tier: [] for tier in tiers})
        health = self._read_whole(gpu, NvmlReader(device, self._lasting), tiers, found)
        instances = self._read_parts(gpu, device, tiers, found)
        if Tier.SLOW in tiers:
            health = replace(health, instances=instances)
        ended = self._clock()
        return GpuSample(
            gpu=self._identity,
            whole=self._whole,
            at=ended,
            seconds=ended - began,
            slices=tuple(part.subject for part in self._layout.instances.values()),
            samples={tier: self._sample(tier, values) for tier, values in found.values.items()},
            health=health,
            problems=tuple(found.problems),
        )

    def _identify(self, gpu: GpuDevice) -> None:
        known = gpu.identity()
        minor = gpu.index if known.minor is None else known.minor
        self._uuid = known.uuid
        self._identity = GpuIdentity(gpu.index, known.uuid, known.pci_bus_id, minor, known.name)
        self._whole = Subject(WholeGpu(self._identity))
        self._links = tuple(Subject(NvLink(self._identity, n)) for n in range(MAX_LINKS))

    def _read_layout(self, gpu: GpuDevice, gone: Collection[int]) -> None:
        self._layout_known = False  # until it was read to its end
        changed = self._layout.read(gpu, self._identity, self._free_samples, gone)
        self._layout_known = True
        if changed:
            # What the GPU as a whole reports depends on the mode and on whether it has instances.
            self._lasting.refused.clear()
            self._gpm.end()

    def _sample(self, tier: Tier, values: list[ReadValue]) -> SampleSet:
        texts = {self._uuid: self._texts} if tier is Tier.SLOW and self._texts else {}
        return SampleSet(by_field(values), {}, texts)

    # --- the GPU as a whole -------------------------------------------------------------------

    def _read_whole(
        self, gpu: GpuDevice, reader: NvmlReader, tiers: frozenset[Tier], found: _Found
    ) -> GpuReading:
        slow, plan = Tier.SLOW in tiers, self._plan.whole
        first = slow and self._lasting.read_once is None
        due = [plan[tier] for tier in (*tiers, *([Tier.ONCE] if first else []))]
        fields = [field_id for rows in due for field_id in rows.field_ids]
        reader.read_fields([*fields, *health_fields(slow=slow)])
        target = ReadTarget(
            reader,
            self._whole,
            self._rates,
            gpm=lambda: _step(reader, self._gpm, reader.device, self._whole_metrics),
            links=self._links,
            others=lambda: _others(gpu),
            port_counters=tuple(counter for rows in due for counter in rows.port_counters),
        )
        _read_tiers(plan, tiers, target, self._lasting, found)
        if first:
            self._texts = dict(read_texts(self._plan.texts, reader))
        known = self._identity
        health = GpuReading(known.uuid, known.index, known.pci_bus_id, mig=self._layout.mig)
        health = read_health(reader, health, slow=slow)
        if reader.doubted:
            nvml.uuid(gpu.handle)  # raises where it is the handle that is wrong
            reader.resolve_doubts()
        found.problems += reader.problems.values()
        return health

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
                self._layout.instances = {}
                return None
        for tier, values in parts.values.items():
            found.values[tier] += values
        found.problems += parts.problems
        return tuple(parts.instances)

    def _try_parts(self, gpu: GpuDevice, device: Device, tiers: frozenset[Tier]) -> _Found:
        found = _Found({tier: [] for tier in tiers})
        for number, part in self._layout.instances.items():
            reader = NvmlReader(part.device, part.lasting)
            target = ReadTarget(
                reader,
                part.subject,
                self._rates,
                gpm=partial(_step, reader, part.gpm, device, self._part_metrics),
            )
            _read_tiers(self._plan.part, tiers, target, part.lasting, found)
            if Tier.SLOW in tiers:
                found.instances.append(read_instance(reader, part.info))
            if reader.doubted:
                _require_same_part(number, part)
                reader.resolve_doubts()
            found.problems += reader.problems.values()
        return found


def _read_tiers(
    plan: Mapping[Tier, Rows],
    tiers: Collection[Tier],
    target: ReadTarget,
    lasting: LastingAnswers,
    found: _Found,
) -> None:
    """Add the values of the tiers; what is read once counts as slow."""
    for tier in tiers:
        found.values[tier] += read_rows(plan[tier], target)
    if Tier.SLOW in tiers:
        if lasting.read_once is None:
            lasting.read_once = list(read_rows(plan[Tier.ONCE], target))
        found.values[Tier.SLOW] += lasting.read_once


def _gpm_metrics(plan: Mapping[Tier, Rows]) -> GpmMetrics:
    return GpmMetrics({metric for rows in plan.values() for metric in rows.gpm_metrics})


def _step(
    reader: NvmlReader, sampler: GpmSampler, gpu: Device, metrics: GpmMetrics
) -> dict[int, float]:
    return reader.ask(("gpm",), lambda: sampler.step(gpu, metrics)) or {}


def _require_same_part(number: int, part: SampledInstance) -> None:
    """Raises _VanishedPart where the handle is not that of the instance any more."""
    try:
        now = nvml.gpu_instance_id(part.device)
    except DriverError as error:
        if error.code not in NOT_KNOWN:
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


# --- the node, in the pool's own thread ---

_NODE = Subject(Node())
_NO_HANDLE = Device(None)


class NodeSampleReader:
    """Remembers what the driver does not have."""

    def __init__(self, plan: FieldPlan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._clock = clock
        self._rates = Rates(clock)
        self._lasting = LastingAnswers()

    def read(self) -> NodeSample:
        """Read the node's values. Raises DriverError if the driver does not even count its GPUs."""
        began = self._clock()
        count = nvml.device_count()
        reader = NvmlReader(_NO_HANDLE, self._lasting)
        values = by_field(read_rows(self._plan.node, ReadTarget(reader, _NODE, self._rates)))
        texts = dict(read_texts(self._plan.node_texts, reader))
        reader.resolve_doubts()
        ended = self._clock()
        sample, problems = SampleSet(values, texts), tuple(reader.problems.values())
        return NodeSample(ended, ended - began, count, sample, problems)
