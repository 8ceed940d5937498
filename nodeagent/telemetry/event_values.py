"""Fields that follow events: the last event of each kind on a GPU or instance is its value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.gpu.event_listener import Binding, Event
from nodeagent.health.readings import XidEvent
from nodeagent.health.xids import default_table
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import (
    Labels,
    Node,
    SampleSet,
    Slice,
    Subject,
    Value,
)
from nodeagent.metrics.sources import Event as FromEvent
from nodeagent.metrics.sources import Happening

_NVLINK_XID = 74


class EventValues:
    """The last of each kind."""

    def __init__(self) -> None:
        self._fields: dict[Happening, list[int]] = {}
        for row in catalogue().fields:
            if isinstance(row.whole, FromEvent):
                self._fields.setdefault(row.whole.happening, []).append(row.id)
        self._last: dict[tuple[int, Subject], Value] = {}

    def update(
        self,
        events: Iterable[Event],
        wholes: Mapping[str, Subject],
        slices: Mapping[str, tuple[Subject, ...]],
    ) -> None:
        """Take over new events. `wholes` are the GPUs by UUID, `slices` their instances."""
        for event in events:
            if isinstance(event, Binding):
                self._put(Happening.BINDING, Subject(Node()), event.kind, ())
                continue
            whole = wholes.get(event.gpu)
            if not isinstance(event, XidEvent) or whole is None:
                continue
            name = default_table().row(event.xid).name  # as dcgm-exporter has it
            labels = (("err_code", str(event.xid)), ("err_msg", name))
            hit = _instance(slices.get(event.gpu, ()), event.instance) or whole
            self._put(Happening.XID, hit, event.xid, labels)
            if event.xid == _NVLINK_XID:
                self._put(Happening.NVLINK_XID, whole, event.xid, ())

    def _put(self, happening: Happening, subject: Subject, value: int, labels: Labels) -> None:
        for number in self._fields.get(happening, ()):
            self._last[number, subject] = (Subject(subject.entity, labels), value)

    def sample(self, slices: Mapping[str, tuple[Subject, ...]]) -> SampleSet:
        """What there is; instances that are gone are forgotten."""
        there = {subject for subjects in slices.values() for subject in subjects}
        self._last = {
            key: value
            for key, value in self._last.items()
            if not isinstance(key[1].entity, Slice) or key[1] in there
        }
        values: dict[int, tuple[Value, ...]] = {}
        for (number, _), value in self._last.items():
            values[number] = (*values.get(number, ()), value)
        return SampleSet(values)


def _instance(subjects: tuple[Subject, ...], number: int | None) -> Subject | None:
    if number is None:
        return None
    return next(
        (s for s in subjects if isinstance(s.entity, Slice) and s.entity.id == number), None
    )
