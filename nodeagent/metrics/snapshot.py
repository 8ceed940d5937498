"""The newest values of each reader, put together to one sample of what is there now.

Readers run at different times, and an instance may go between two of them: what is told of one
that is gone is left out here, whoever read it and whenever. So a series ends with its instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.metrics.samples import Entity, Node, SampleSet, Slice, Subject, Value


@dataclass(slots=True)
class LatestReadings:
    """What each reader said last. A reader that fails keeps what it said; its age is told."""

    _by_reader: dict[str, SampleSet] = field(default_factory=dict)

    def put(self, reader: str, sample: SampleSet) -> None:
        """A reader's newest values take the place of its earlier ones."""
        self._by_reader[reader] = sample

    def drop(self, reader: str) -> None:
        """What this reader said is worth nothing any more (its GPU is lost)."""
        self._by_reader.pop(reader, None)

    def sample(
        self, slices: Mapping[str, tuple[Subject, ...]], wholes: Iterable[Subject] = ()
    ) -> SampleSet:
        """All values that are of something that exists; `slices` are the instances there are now.

        Those of a field are in the order of the GPUs' indices, whichever GPU answered first.

        Values of instances, and of GPUs that are among `wholes`, get the attributes (pod,
        container) that these have, unless they have some of their own.
        """
        now = _Now(
            {s.entity: s for subjects in slices.values() for s in subjects}
            | {s.entity: s for s in wholes}
        )
        values: dict[int, tuple[Value, ...]] = {}
        node_texts: dict[int, str] = {}
        gpu_texts: dict[str, dict[int, str]] = {}
        for said in self._by_reader.values():
            for number, of_field in said.values.items():
                values[number] = values.get(number, ()) + now.existing(of_field)
            node_texts.update(said.node_texts)
            for uuid, texts in said.gpu_texts.items():
                gpu_texts.setdefault(uuid, {}).update(texts)
        ordered = {number: tuple(sorted(found, key=_index)) for number, found in values.items()}
        return SampleSet(ordered, node_texts, gpu_texts, slices)


def _index(value: Value) -> int:
    entity = value[0].entity
    return -1 if isinstance(entity, Node) else entity.gpu.index


class _Now:
    """What there is. Looking up is by identity first: many values are of few subjects."""

    def __init__(self, subjects: Mapping[Entity, Subject]) -> None:
        self._subjects = subjects
        self._met: dict[int, Subject | None] = {}

    def existing(self, of_field: tuple[Value, ...]) -> tuple[Value, ...]:
        """The values of what exists, each with the subject that it is now."""
        met = self._met
        kept: list[Value] = []
        for subject, value in of_field:
            key = id(subject)  # they are all kept by the samples meanwhile
            current = met[key] if key in met else met.setdefault(key, self._find(subject))
            if current is not None:
                kept.append((current, value))
        return tuple(kept)

    def _find(self, subject: Subject) -> Subject | None:
        current = self._subjects.get(subject.entity)
        if current is None:
            return None if isinstance(subject.entity, Slice) else subject
        return subject if subject.attributes else current
