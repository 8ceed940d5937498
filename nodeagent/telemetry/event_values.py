"""Fields that follow events: the last event of each kind on a GPU or instance is its value.

XIDs as dcgm-exporter has them: `DCGM_FI_DEV_XID_ERRORS` is there from the start, as 0 with
`err_code="0"` and `err_msg="No Error"`. The first XID ends that series and begins one with its own
number as value and `err_code` and with its name as `err_msg`, "Unknown Error" where it has none;
the next XID does the same. It never returns to 0 before a reboot. On a GPU with MIG dcgm-exporter
has a series for each instance; here the GPU has one too, for XIDs that hit no instance. Its names
are NVIDIA's of an earlier catalog: XID 95 is "Uncontained ECC error" there.
(internal/pkg/collector/gpu_collector.go, toMetric; xid_errors.go, xidErrCodeToText)

The XIDs are those that health counts, so that both name the same ones, whichever source they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.gpu.event_listener import Binding, Event
from nodeagent.health.state import XidCount
from nodeagent.health.xids import default_table
from nodeagent.metrics import sources
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import Node, SampleSet, Slice, Subject, Value
from nodeagent.metrics.sources import Happening

_NVLINK_XID = 74
_NO_ERROR = (("err_code", "0"), ("err_msg", "No Error"))


class EventValues:
    """The last of each kind."""

    def __init__(self) -> None:
        self._binding: tuple[Value, ...] = ()

    def update(self, events: Iterable[Event]) -> None:
        """Take over new events."""
        for event in events:
            if isinstance(event, Binding):
                self._binding = ((Subject(Node()), event.kind),)

    def sample(
        self,
        xids: Iterable[XidCount],
        wholes: Mapping[str, Subject],
        slices: Mapping[str, tuple[Subject, ...]],
        answering: Iterable[Subject],
    ) -> SampleSet:
        """The last events. `wholes` are the GPUs by UUID, `slices` their instances; an XID of 0 is
        there for these and for the GPUs that answer.
        """
        last: dict[Subject, int] = {}
        links: dict[Subject, int] = {}
        for count in sorted(xids, key=lambda count: count.last):
            whole = wholes.get(count.gpu)
            if whole is None or not count.last.uptime:
                continue
            parts: dict[int | None, Subject] = {None: whole}
            for part in slices.get(count.gpu, ()):
                if isinstance(part.entity, Slice):
                    parts[part.entity.id] = part
            if count.instance in parts:
                last[parts[count.instance]] = count.xid
            if count.xid == _NVLINK_XID:
                links[whole] = count.xid
        subjects = (*answering, *(part for parts in slices.values() for part in parts))
        values: dict[Happening, tuple[Value, ...]] = {
            Happening.BINDING: self._binding,
            Happening.NVLINK_XID: tuple(links.items()),
            Happening.XID: (
                *(_named(subject, xid) for subject, xid in last.items()),
                *(
                    (Subject(subject.entity, _NO_ERROR), 0)
                    for subject in subjects
                    if subject not in last
                ),
            ),
        }
        return SampleSet(
            {
                row.id: values[row.whole.happening]
                for row in catalogue().fields
                if isinstance(row.whole, sources.EventCount) and values[row.whole.happening]
            }
        )


def _named(subject: Subject, xid: int) -> Value:
    name = default_table().row(xid).name or "Unknown Error"
    return Subject(subject.entity, (("err_code", str(xid)), ("err_msg", name))), xid
