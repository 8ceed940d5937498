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

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping

from nodeagent.gpu.event_listener import Binding, Event
from nodeagent.health.state import HealthState, XidCount
from nodeagent.health.xids import default_table
from nodeagent.metrics.catalogue import Field, catalogue
from nodeagent.metrics.node_metrics import check_samples
from nodeagent.metrics.samples import Node, SampleSet, Slice, Subject, Value
from nodeagent.metrics.selection import CLOCK_EVENT_REASONS
from nodeagent.metrics.sources import EventCount, Happening
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.views.node_state import CLOCK_REASONS

_NVLINK_XID = 74
_NO_ERROR = (("err_code", "0"), ("err_msg", "No Error"))


_Counted = tuple[Happening, Subject, int]  # what of whom, and how often
_WINDOW = 300.0  # seconds, as dcgm-exporter has it
_WINDOW_LABEL = ("window_size_in_ms", "300000")


class EventValues:
    """The last of each kind, and counts of the last five minutes."""

    def __init__(self) -> None:
        self._binding: tuple[Value, ...] = ()
        self._seen: dict[tuple[str, int | None, int], int] | None = None  # XIDs
        self._recent: deque[tuple[float, Happening, Subject, int]] = deque()

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
        return _by_row(catalogue().fields, values)

    def composed(
        self,
        fields: Iterable[Field],
        found: SampleBatch,
        health: HealthState,
        wholes: Mapping[str, Subject],
        now: float,
    ) -> SampleSet:
        """What dcgm-exporter makes of several readings. XIDs before the first call do not count."""
        self._recent += ((now, *event) for event in self._new_xids(found, health, wholes))
        self._recent += ((now, *event) for event in _clock_events(found))
        while self._recent and self._recent[0][0] < now - _WINDOW:
            self._recent.popleft()
        values: dict[Happening, Counter[Subject]] = defaultdict(Counter)
        for _, happening, subject, count in self._recent:
            values[happening][subject] += count
        for check in check_samples(health):
            name, _, gpu = check.labels
            if gpu in wholes:
                subject = Subject(wholes[gpu].entity, (("health_watch", name),))
                values[Happening.HEALTH][subject] = round(20 * (1 - check.value))
        return _by_row(fields, {of: tuple(counts.items()) for of, counts in values.items()})

    def _new_xids(
        self, found: SampleBatch, health: HealthState, wholes: Mapping[str, Subject]
    ) -> Iterator[_Counted]:
        subjects: dict[tuple[str, int | None], Subject] = {(w, None): wholes[w] for w in wholes}
        for uuid, parts in found.slices.items():
            subjects |= {(uuid, p.entity.id): p for p in parts if isinstance(p.entity, Slice)}
        seen = {(count.gpu, count.instance, count.xid): count.count for count in health.xids}
        before, self._seen = seen if self._seen is None else self._seen, seen
        for (gpu, instance, xid), count in seen.items():
            new = count - before.get((gpu, instance, xid), 0)
            if new > 0 and (hit := subjects.get((gpu, instance))):
                subject = Subject(hit.entity, (_WINDOW_LABEL, ("xid", str(xid))))
                yield Happening.XIDS, subject, new


def _by_row(rows: Iterable[Field], values: Mapping[Happening, tuple[Value, ...]]) -> SampleSet:
    """The values of what each row follows, where there are any."""
    followed = {row.id: row.whole.happening for row in rows if isinstance(row.whole, EventCount)}
    return SampleSet({row: values[of] for row, of in followed.items() if values.get(of)})


def _clock_events(found: SampleBatch) -> Iterator[_Counted]:
    for sample in found.samples.values():
        for whole, bits in sample.values.get(CLOCK_EVENT_REASONS, ()):
            for number, name in enumerate(CLOCK_REASONS):
                if int(bits) >> number & 1:
                    subject = Subject(whole.entity, (("clock_event", name), _WINDOW_LABEL))
                    yield Happening.CLOCKS, subject, 1


def _named(subject: Subject, xid: int) -> Value:
    name = default_table().row(xid).name or "Unknown Error"
    return Subject(subject.entity, (("err_code", str(xid)), ("err_msg", name))), xid
