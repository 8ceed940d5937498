"""The newest values of each reader, put together to one sample of what is there now.

Readers run at different times, and an instance may go between two of them: what is told of one
that is gone is left out here, whoever read it and whenever. So a series ends with its instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.metrics.samples import Entity, SampleSet, Slice, Subject, Value


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

    def sample(self, slices: Mapping[str, tuple[Subject, ...]]) -> SampleSet:
        """All values that are of something that exists; `slices` are the instances there are now.

        An instance's values get the attributes (pod, container) that it has in `slices`, unless
        they have some of their own.
        """
        now = {s.entity: s for subjects in slices.values() for s in subjects}
        values: dict[int, tuple[Value, ...]] = {}
        node_texts: dict[int, str] = {}
        gpu_texts: dict[str, dict[int, str]] = {}
        for said in self._by_reader.values():
            for number, of_field in said.values.items():
                values[number] = values.get(number, ()) + _existing(of_field, now)
            node_texts.update(said.node_texts)
            for uuid, texts in said.gpu_texts.items():
                gpu_texts.setdefault(uuid, {}).update(texts)
        return SampleSet(values, node_texts, gpu_texts, slices)


def _existing(of_field: tuple[Value, ...], now: Mapping[Entity, Subject]) -> tuple[Value, ...]:
    kept: list[Value] = []
    for subject, value in of_field:
        if isinstance(subject.entity, Slice):
            current = now.get(subject.entity)
            if current is None:
                continue
            if not subject.attributes:
                kept.append((current, value))
                continue
        kept.append((subject, value))
    return tuple(kept)
