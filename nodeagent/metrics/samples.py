"""What was read at one moment: values of fields, each of one thing, with what they are labelled by.

A value that the driver does not give is not here at all; it is never 0.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from nodeagent.metrics.catalogue import Field, Kind
from nodeagent.metrics.sources import Number
from nodeagent.structs import Struct, field, replace

Labels = tuple[tuple[str, str], ...]


class GpuIdentity(Struct, frozen=True):
    """What identifies a GPU in labels. `minor` is the N of /dev/nvidiaN."""

    index: int
    uuid: str
    pci_bus_id: str
    minor: int
    model: str

    def __hash__(self) -> int:  # of all its values would take long, and is needed often
        return hash(self.uuid)


class Node(Struct, frozen=True):
    """The node as a whole."""


class WholeGpu(Struct, frozen=True):
    """A GPU as a whole, whatever it is divided into."""

    gpu: GpuIdentity


class Slice(Struct, frozen=True):
    """A GPU instance. `generation` distinguishes those that had the same id one after the other."""

    gpu: GpuIdentity
    profile: str
    id: int
    generation: int = 0

    def __hash__(self) -> int:  # as above
        return hash((self.gpu.uuid, self.id))


class NvLink(Struct, frozen=True):
    """One NVLink of a GPU."""

    gpu: GpuIdentity
    link: int


Entity = Node | WholeGpu | Slice | NvLink


class Subject(Struct, frozen=True):
    """What a value is of, and whose it is.

    `attributes` are the labels that are not the entity's own (container, namespace, pod, err_code):
    they follow the others, sorted by name.
    """

    entity: Entity
    attributes: Labels = ()


Value = tuple[Subject, Number]


class SampleSet(Struct, frozen=True):
    """The values of a moment by field id, and the texts that became labels.

    `node_texts` are by the id of a text field; `gpu_texts` likewise, first by the GPU's UUID.
    `slices` are the GPU instances that there are, by the UUID of their GPU, each as the subject it
    is for values of its own.
    """

    values: Mapping[int, tuple[Value, ...]]
    node_texts: Mapping[int, str] = field(default_factory=dict)
    gpu_texts: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    slices: Mapping[str, tuple[Subject, ...]] = field(default_factory=dict)


def by_field(values: Iterable[tuple[int, Subject, Number]]) -> dict[int, tuple[Value, ...]]:
    """Values in the order they were read, put together by field."""
    together: dict[int, list[Value]] = {}
    for number, subject, value in values:
        together.setdefault(number, []).append((subject, value))
    return {number: tuple(of_field) for number, of_field in together.items()}


# --- the newest values of all readers ---
#
# Readers run at different times, and an instance may go between two of them: values of one that is
# gone are left out, so that a series ends with its instance.


def merged(
    samples: Iterable[SampleSet],
    slices: Mapping[str, tuple[Subject, ...]],
    wholes: Iterable[Subject] = (),
) -> SampleSet:
    """All values that are of something that exists; `slices` are the instances there are now.

    Those of a field are in the order of the GPUs' indices, whichever GPU answered first.

    Values of instances, and of GPUs that are among `wholes`, get the attributes (pod, container)
    that these have, unless they have some of their own.
    """
    subjects = (*wholes, *(subject for some in slices.values() for subject in some))
    now = {subject.entity: subject for subject in subjects}
    current: dict[int, Subject | None] = {}  # by identity first: many values are of few subjects
    values: dict[int, list[Value]] = {}
    node_texts: dict[int, str] = {}
    gpu_texts: dict[str, dict[int, str]] = {}
    for sample in samples:
        for number, of_field in sample.values.items():
            kept = values.setdefault(number, [])
            for subject, value in of_field:
                key = id(subject)  # the samples keep them meanwhile
                if key not in current:
                    current[key] = _current(subject, now)
                existing = current[key]
                if existing is not None:
                    kept.append((existing, value))
        node_texts.update(sample.node_texts)
        for uuid, texts in sample.gpu_texts.items():
            gpu_texts.setdefault(uuid, {}).update(texts)
    ordered = {number: tuple(sorted(found, key=_index)) for number, found in values.items()}
    return SampleSet(ordered, node_texts, gpu_texts, slices)


def _current(subject: Subject, now: Mapping[Entity, Subject]) -> Subject | None:
    """The subject as it is now; None for an instance that is gone."""
    current = now.get(subject.entity)
    if current is None:
        return None if isinstance(subject.entity, Slice) else subject
    return subject if subject.attributes else current


def _index(value: Value) -> int:
    entity = value[0].entity
    return -1 if isinstance(entity, Node) else entity.gpu.index


# --- counters that only grow, out of readings that do not ---
#
# The driver's counters begin anew when it is loaded again, when a GPU is reset, when an instance is
# made at a place where one was before. A series that goes back would be read as a restart of all it
# counts, and one that is merely lower than before is wrong in every sum. So what was lost is added.

_Series = tuple[int, Entity, Labels]


class _Counted(Struct):
    """`raw` is the last reading, `lost` what those before it had come to when they began anew. A
    lower generation is no other instance: the reader began anew.
    """

    generation: int
    raw: Number = 0
    lost: Number = 0

    def read(self, raw: Number, generation: int) -> Number:
        if generation > self.generation or raw < self.raw:
            self.lost += self.raw
        self.generation, self.raw = generation, raw
        return self.lost + raw


class MonotonicCounters:
    """What each series of a counter has come to.

    A series that is not there (its instance is gone, its reader failed) is remembered where it
    stopped, so that one with the same labels goes on from there; of those the newest `kept`.
    """

    def __init__(self, fields: Iterable[Field], *, kept: int = 4096) -> None:
        self._counters = tuple(row.id for row in fields if row.kind is Kind.COUNTER)
        self._kept = kept
        self._running: dict[_Series, _Counted] = {}
        self._stopped: OrderedDict[_Series, _Counted] = OrderedDict()

    def steady(self, sample: SampleSet) -> SampleSet:
        """The sample with its counters made monotonic. To be given each sample once, in order."""
        values: dict[int, tuple[Value, ...]] = dict(sample.values)
        seen: dict[_Series, _Counted] = {}
        for number in self._counters:
            if number in values:
                values[number] = tuple(
                    (subject, self._read(number, subject, raw, seen))
                    for subject, raw in values[number]
                )
        for series, counted in self._running.items():
            if series not in seen:
                self._stopped[series] = counted
        while len(self._stopped) > self._kept:
            self._stopped.popitem(last=False)
        self._running = seen
        return replace(sample, values=values)

    def _read(
        self, number: int, subject: Subject, raw: Number, seen: dict[_Series, _Counted]
    ) -> Number:
        entity, generation = subject.entity, 0
        if isinstance(entity, Slice) and entity.generation:
            generation = entity.generation
            entity = replace(entity, generation=0)  # no label distinguishes it
        series = (number, entity, subject.attributes)
        counted = self._running.get(series) or self._stopped.pop(series, None)
        counted = counted or _Counted(generation)
        seen[series] = counted
        return counted.read(raw, generation)
