"""Counters that only grow, out of readings that do not.

The driver's counters begin anew when it is loaded again, when a GPU is reset, when an instance is
made at a place where one was before. A series that goes back would be read as a restart of all it
counts, and one that is merely lower than before is wrong in every sum. So what was lost is added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nodeagent.metrics.catalogue import Field, Kind
from nodeagent.metrics.conversion import Number
from nodeagent.metrics.samples import Entity, Labels, SampleSet, Slice, Subject, Value

_Series = tuple[int, Entity, Labels]


@dataclass(slots=True)
class _Counted:
    """`raw` is the last reading, `lost` what those before it had come to when they began anew."""

    generation: int
    raw: Number = 0
    lost: Number = 0

    def read(self, raw: Number, generation: int) -> Number:
        if generation != self.generation or raw < self.raw:
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
            entity = replace(entity, generation=0)  # no label tells it apart
        series = (number, entity, subject.attributes)
        counted = self._running.get(series) or self._stopped.pop(series, None)
        counted = counted or _Counted(generation)
        seen[series] = counted
        return counted.read(raw, generation)
