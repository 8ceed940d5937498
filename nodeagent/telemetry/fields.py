"""Reads the fields of the catalogue: which rows each tier has, and the values of each row.

A row that the driver cannot answer is left out; calls that several rows share are made once, by
`NvmlReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nodeagent.gpu.nvml import MAX_LINKS, Device, call
from nodeagent.gpu.nvml_calls import FieldId, constant, member, number, port_counters
from nodeagent.metrics import sources
from nodeagent.metrics.catalogue import Field, TextField, Tier
from nodeagent.metrics.samples import Subject
from nodeagent.metrics.sources import Link, Number, Raw, Source, converted
from nodeagent.structs import Struct, field
from nodeagent.telemetry.nvml_reader import NvmlReader

ReadValue = tuple[int, Subject, Number]
RawValues = Iterable[tuple[Subject, Raw | None]]

POLLED_TIERS = (Tier.FAST, Tier.SLOW, Tier.ONCE)
_WRONG_SHAPE = (TypeError, ValueError, AttributeError, IndexError)
_OK = 0  # NVML_P2P_STATUS_OK

# The product brands of NVML's header (nvmlBrandType_t) from 0 on, as nvidia-smi calls them.
_BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan",
    "NVIDIA Virtual Applications", "NVIDIA Virtual PC", "NVIDIA Virtual Compute Server",
    "NVIDIA RTX Virtual Workstation", "NVIDIA Cloud Gaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA",
    "GeForce RTX", "Titan RTX",
)  # fmt: skip


class Rows(Struct):
    """The rows of one tier, of GPUs or of GPU instances, and what is read for them in batches."""

    rows: list[tuple[int, Source, Callable[[ReadTarget], RawValues]]] = field(default_factory=list)
    field_ids: list[FieldId] = field(default_factory=list)
    gpm_metrics: set[int] = field(default_factory=set)
    port_counters: list[int] = field(default_factory=list)

    def add(self, row: int, source: Source) -> None:
        """Add a row of the catalogue, by its number, that is read from `source`."""
        self.rows.append((row, source, _reader_of(self, row, source)))


class FieldPlan(Struct):
    """The rows to read by tier: `whole` for GPUs, `part` for GPU instances, `node` for the node."""

    whole: dict[Tier, Rows] = field(default_factory=lambda: {tier: Rows() for tier in POLLED_TIERS})
    part: dict[Tier, Rows] = field(default_factory=lambda: {tier: Rows() for tier in POLLED_TIERS})
    node: Rows = field(default_factory=Rows)
    texts: list[TextField] = field(default_factory=list)
    node_texts: list[TextField] = field(default_factory=list)


def make_plan(fields: Iterable[Field], texts: Iterable[TextField] = ()) -> FieldPlan:
    """Plan how to read these fields. Those that follow events are left out."""
    plan = FieldPlan()
    for entry in fields:
        if isinstance(entry.whole, sources.EventCount):
            continue
        of_node = isinstance(entry.whole, sources.SystemCall)
        (plan.node if of_node else plan.whole[entry.tier]).add(entry.id, entry.whole)
        if entry.part is not None:
            plan.part[entry.tier].add(entry.id, entry.part)
    for text in texts:
        of_gpu = isinstance(text.source, sources.DeviceCall)
        (plan.texts if of_gpu else plan.node_texts).append(text)
    return plan


# --- values ---------------------------------------------------------------------------------------


class Rates:
    """Turns sums of field values into growth per second. Keeps the last sum of each row."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[int, int], tuple[float, Number]] = {}

    def rate(self, key: tuple[int, int], parts: list[Number | None]) -> float | None:
        """The growth per second of a sum; None at first and after a reset. `key`: row and link."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            self._last.pop(key, None)
            return None
        now, total, before = self._clock(), sum(known), self._last.get(key)
        self._last[key] = (now, total)
        if before is None or total < before[1] or now <= before[0]:
            return None
        return (total - before[1]) / (now - before[0])


class ReadTarget(Struct, frozen=True):
    """What is read: the node, a GPU with its `links`, or a GPU instance, which has none.

    `gpm` gives the GPM metrics since the last sample, `others` the other GPUs by index.
    """

    reader: NvmlReader
    subject: Subject
    rates: Rates
    gpm: Callable[[], dict[int, float]] = dict
    links: tuple[Subject, ...] = ()
    others: Callable[[], list[tuple[int, Device]]] = list
    port_counters: Sequence[int] = ()

    def of_link(self, scope: Link, link: int) -> Subject:
        return self.links[link] if scope is sources.EACH_LINK else self.subject

    def ports(self) -> dict[tuple[int, int], Number]:
        return self.reader.ask(("ports",), self._read_ports) or {}

    def _read_ports(self) -> dict[tuple[int, int], Number]:
        links = range(len(self.links))
        wanted = [(counter, link) for counter in self.port_counters for link in links]
        # The port of link n has the number n + 1.
        answers = port_counters(self.reader.device, [(c, link + 1) for c, link in wanted])
        pairs = zip(wanted, answers, strict=True)
        return {place: value for place, (code, value) in pairs if not code}


def read_rows(rows: Rows, target: ReadTarget) -> Iterator[ReadValue]:
    """The values of all rows, of the target and its links; field values were read before."""
    for row, source, read in rows.rows:
        found = read(target)
        try:
            for subject, raw in found:
                value = None if raw is None else converted(source.conversion, raw)
                if value is not None:
                    yield row, subject, value
        except _WRONG_SHAPE as error:
            function = getattr(source, "function", f"field {row}")
            why = f"{function} has another answer than known: {error}"
            target.reader.problems["shape", function] = why


def _reader_of(rows: Rows, row: int, source: Source) -> Callable[[ReadTarget], RawValues]:  # noqa: C901 # one case for each kind of source
    """A function that reads the raw values of a row. The constants that the row names are looked up
    here, once, and what is read in batches is added to the batches of `rows`.
    """
    match source:
        case sources.DeviceCall() | sources.SystemCall():
            ask, items = _call_of(source), source.items
            return lambda target: _of_answer(target.subject, ask(target.reader), items)
        case sources.VerdictCall(function, name):
            refusal = constant(name)
            return lambda target: [(target.subject, target.reader.verdict(function, refusal))]
        case sources.PeerCall(function, name):
            argument = constant(name)
            return lambda target: [(target.subject, _peers(target, function, argument))]
        case sources.LinkCall(function, name, scope):
            counter = constant(name)
            return lambda target: [
                (target.of_link(scope, link), target.reader.call(function, link, counter))
                for link in _links_of(scope)
            ]
        case sources.FieldValue(number, _, scope):
            rows.field_ids += [(number, link) for link in _links_of(scope)]
            return lambda target: [
                (target.of_link(scope, link), target.reader.field(number, link))
                for link in _links_of(scope)
            ]
        case sources.FieldRate(numbers, _, scope):
            rows.field_ids += [(n, link) for link in _links_of(scope) for n in numbers]
            return lambda target: [
                (
                    target.of_link(scope, link),
                    target.rates.rate((row, link), [target.reader.field(n, link) for n in numbers]),
                )
                for link in _links_of(scope)
            ]
        case sources.Gpm(metrics):
            rows.gpm_metrics.update(metrics)
            return lambda target: [(target.subject, _mean(target.gpm(), metrics))]
        case sources.GpmLink(first, step):
            rows.gpm_metrics.update(first + step * link for link in range(MAX_LINKS))
            return lambda target: [
                (subject, target.gpm().get(first + step * link))
                for link, subject in enumerate(target.links)
            ]
        case sources.PortCounter(name):
            counter = constant(name)
            rows.port_counters.append(counter)
            return lambda target: [
                (subject, target.ports().get((counter, link)))
                for link, subject in enumerate(target.links)
            ]
        case sources.EventCount():
            raise TypeError(f"{source!r} is not read")


def _links_of(scope: Link) -> Iterable[int]:
    return (scope,) if isinstance(scope, int) else range(MAX_LINKS)


def _call_of(source: sources.DeviceCall | sources.SystemCall) -> Callable[[NvmlReader], Any]:
    function = source.function
    if isinstance(source, sources.SystemCall):
        return lambda reader: reader.ask((function,), lambda: call(function))
    if structure := source.structure:
        return lambda reader: reader.structure(function, structure)
    arguments = tuple(map(constant, source.arguments))
    return lambda reader: reader.call(function, *arguments)


def _of_answer(
    subject: Subject, answer: Any, items: tuple[str, ...]
) -> Iterator[tuple[Subject, Raw]]:
    """The numbers in an answer. A generator: `read_rows` catches what an unknown shape raises."""
    if answer is None:
        return
    if len(items) < 2:
        yield subject, number(member(answer, items[0]) if items else answer)
    else:
        numbers = tuple(number(member(answer, item)) for item in items)
        yield subject, tuple(n for n in numbers if not isinstance(n, tuple))


def _mean(gpm: dict[int, float], metrics: tuple[int, ...]) -> float | None:
    known = [gpm[metric] for metric in metrics if metric in gpm]
    return sum(known) / len(known) if known else None


def _peers(target: ReadTarget, function: str, argument: int) -> int | None:
    """A bit for each of the other GPUs, set where the status is OK; None if no status is known."""
    reader = target.reader

    def status(index: int, other: Device) -> Any:
        key = (function, index, argument)
        return reader.ask(key, lambda: call(function, reader.device, other, argument))

    peers = reader.ask(("peers",), target.others)
    answers = [(index, status(index, device)) for index, device in peers or ()]
    known = [(index, found) for index, found in answers if found is not None]
    if not known and peers != []:  # without other GPUs it is known to be 0
        return None
    return sum(1 << index for index, found in known if found == _OK)


# --- texts ----------------------------------------------------------------------------------------


def read_texts(texts: Iterable[TextField], reader: NvmlReader) -> Iterator[tuple[int, str]]:
    """The texts of a GPU or the node that become labels, by their number."""
    for text in texts:
        if isinstance(text.source, sources.DeviceCall | sources.SystemCall):
            answer, items = _call_of(text.source)(reader), text.source.items
            if answer is not None:
                yield text.id, as_text(text.name, member(answer, items[0]) if items else answer)


def as_text(name: str, answer: Any) -> str:
    """The answer to the text field `name`; an unknown brand stays a number."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    if name.endswith("_BRAND"):
        return _BRANDS[answer] if 0 <= answer < len(_BRANDS) else str(answer)
    if name.endswith(("COMBINED_ID", "SUBSYS_ID")):
        return f"0x{answer:08X}"
    if hasattr(answer, "__len__") and not isinstance(answer, str):
        raw = bytes(answer).hex()
        return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return str(answer)
