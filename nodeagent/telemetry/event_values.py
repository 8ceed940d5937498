"""Fields that follow events: the last event of each kind on a GPU or instance is its value.

XIDs as dcgm-exporter has them: `DCGM_FI_DEV_XID_ERRORS` is there from the start, as 0 with
`err_code="0"` and `err_msg="No Error"`. The first XID ends that series and begins one with its own
number as value and `err_code` and with its name as `err_msg`, "Unknown Error" where it has none;
the next XID does the same. It never returns to 0. On a GPU with MIG dcgm-exporter has a series for
each instance; here the GPU has one too, for XIDs that hit no instance. Its names are NVIDIA's of an
earlier catalog: XID 95 is "Uncontained ECC error" there.
(internal/pkg/collector/gpu_collector.go, toMetric; xid_errors.go, xidErrCodeToText)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.gpu.event_listener import Binding, Event
from nodeagent.health.readings import XidEvent
from nodeagent.health.xids import default_table
from nodeagent.metrics import sources
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import Labels, Node, SampleSet, Slice, Subject, Value
from nodeagent.metrics.sources import Happening

_NVLINK_XID = 74
_NO_ERROR = (("err_code", "0"), ("err_msg", "No Error"))


class EventValues:
    """The last of each kind."""

    def __init__(self) -> None:
        self._fields: dict[Happening, list[int]] = {}
        for row in catalogue().fields:
            if isinstance(row.whole, sources.Event):
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
            name = default_table().row(event.xid).name or "Unknown Error"
            labels = (("err_code", str(event.xid)), ("err_msg", name))
            hit = whole
            for part in slices.get(event.gpu, ()):
                if isinstance(part.entity, Slice) and part.entity.id == event.instance:
                    hit = part
            self._put(Happening.XID, hit, event.xid, labels)
            if event.xid == _NVLINK_XID:
                self._put(Happening.NVLINK_XID, whole, event.xid, ())

    def _put(self, happening: Happening, subject: Subject, value: int, labels: Labels) -> None:
        for number in self._fields.get(happening, ()):
            self._last[number, subject] = (Subject(subject.entity, labels), value)

    def sample(
        self, wholes: Iterable[Subject], slices: Mapping[str, tuple[Subject, ...]]
    ) -> SampleSet:
        """The last events, and an XID of 0 for `wholes`, the GPUs that answer, and for `slices`,
        their instances, that had none; instances that are gone are forgotten.
        """
        parts = [subject for subjects in slices.values() for subject in subjects]
        there = set(parts)
        self._last = {
            key: value
            for key, value in self._last.items()
            if not isinstance(key[1].entity, Slice) or key[1] in there
        }
        values: dict[int, list[Value]] = {}
        for (number, _), value in self._last.items():
            values.setdefault(number, []).append(value)
        subjects = (*wholes, *parts)
        for number in self._fields[Happening.XID]:
            without = (subject for subject in subjects if (number, subject) not in self._last)
            values.setdefault(number, []).extend((Subject(s.entity, _NO_ERROR), 0) for s in without)
        return SampleSet({number: tuple(found) for number, found in values.items()})
