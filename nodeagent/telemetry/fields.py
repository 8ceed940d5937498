"""Reads the fields of the catalogue: which rows each tier has, and the values of each row's source.

A row that the driver cannot answer is left out; calls that several rows share are made once, by
`NvmlReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml import MOST_LINKS, Device, call
from nodeagent.gpu.nvml_calls import FieldId, constant, member, number, port_counters
from nodeagent.metrics.catalogue import Field, Reading, TextField, Tier
from nodeagent.metrics.samples import Subject
from nodeagent.metrics.sources import (
    EACH_LINK,
    Composed,
    Conversion,
    DeviceCall,
    Event,
    FieldRate,
    FieldValue,
    Gpm,
    GpmLink,
    LinkCall,
    Number,
    PeerCall,
    PortCounter,
    Raw,
    Source,
    SystemCall,
    Verdict,
    converted,
)
from nodeagent.telemetry.nvml_reader import NvmlReader

ReadValue = tuple[int, Subject, Number]

READ = (Tier.FAST, Tier.SLOW, Tier.ONCE)
_WRONG_SHAPE = (TypeError, ValueError, AttributeError, IndexError)
_OK = 0  # NVML_P2P_STATUS_OK

# The product brands of NVML's header (nvmlBrandType_t) from 0 on, as nvidia-smi calls them.
_BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan",
    "NVIDIA Virtual Applications", "NVIDIA Virtual PC", "NVIDIA Virtual Compute Server",
    "NVIDIA RTX Virtual Workstation", "NVIDIA Cloud Gaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA",
    "GeForce RTX", "Titan RTX",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A field's number and how its value is read. `constants` are the numbers that it names."""

    id: int
    conversion: Conversion
    source: Source
    constants: tuple[int, ...] = ()

    def value(self, raw: Raw) -> Number | None:
        if self.conversion is Conversion.AS_IS and isinstance(raw, int):
            return raw
        return converted(self.conversion, raw)


@dataclass(slots=True)
class Rows:
    """The rows of one tier, of GPUs or of GPU instances, and what they need in a batch."""

    rows: list[Row] = field(default_factory=list)
    field_ids: list[FieldId] = field(default_factory=list)
    gpm_metrics: set[int] = field(default_factory=set)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        match row.source:
            case FieldValue(number, _, scope):
                self.field_ids += [(number, link) for link in _links_of(scope)]
            case FieldRate(numbers, _, scope):
                self.field_ids += [(n, link) for link in _links_of(scope) for n in numbers]
            case Gpm(metrics):
                self.gpm_metrics.update(metrics)
            case GpmLink(first, step):
                self.gpm_metrics.update(first + step * link for link in range(MOST_LINKS))
            case _:
                pass


@dataclass(slots=True)
class Plan:
    """`whole` of GPUs and `part` of their instances, by tier; `node` of the node."""

    whole: dict[Tier, Rows] = field(default_factory=lambda: {tier: Rows() for tier in READ})
    part: dict[Tier, Rows] = field(default_factory=lambda: {tier: Rows() for tier in READ})
    node: list[Row] = field(default_factory=list)
    texts: list[tuple[TextField, DeviceCall, tuple[int, ...]]] = field(default_factory=list)
    node_texts: list[TextField] = field(default_factory=list)


def make_plan(fields: Iterable[Field], texts: Iterable[TextField] = ()) -> Plan:
    """How to read these fields. Those that follow events are not in it."""
    plan = Plan()
    for entry in fields:
        if entry.tier is Tier.EVENT or isinstance(entry.whole.source, Event | Composed):
            continue
        row = _row(entry.id, entry.whole)
        if isinstance(row.source, SystemCall):
            plan.node.append(row)
        else:
            plan.whole[entry.tier].add(row)
        if entry.part is not None:
            plan.part[entry.tier].add(_row(entry.id, entry.part))
    for text in texts:
        if isinstance(text.source, DeviceCall):
            constants = tuple(map(constant, text.source.arguments))
            plan.texts.append((text, text.source, constants))
        else:
            plan.node_texts.append(text)
    return plan


def _row(number: int, reading: Reading) -> Row:
    match reading.source:
        case DeviceCall(arguments=names):
            pass
        case PeerCall(argument=name) | LinkCall(counter=name) | PortCounter(counter=name):
            names = (name,)
        case Verdict(refusal=name):
            names = (name,)
        case _:
            names = ()
    return Row(number, reading.conversion, reading.source, tuple(map(constant, names)))


def _links_of(link: object) -> Iterable[int]:
    """The links that a row means."""
    if link is EACH_LINK:
        return range(MOST_LINKS)
    if not isinstance(link, int):
        raise TypeError(f"{link!r} is no link")
    return (link,)


# --- values ---------------------------------------------------------------------------------------


class Rates:
    """Turns sums of field values into growth per second. Keeps the last sum of each row."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[int, int], tuple[float, Number]] = {}

    def rate(self, key: tuple[int, int], parts: list[Number | None]) -> float | None:
        """`key` is the row and the link; the rate is None at first and after a restart."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            self._last.pop(key, None)
            return None
        now, total, before = self._clock(), sum(known), self._last.get(key)
        self._last[key] = (now, total)
        if before is None or total < before[1] or now <= before[0]:
            return None
        return (total - before[1]) / (now - before[0])


@dataclass(frozen=True, slots=True)
class Target:
    """What is read: a GPU with its `links`, or a GPU instance, which has none.

    `gpm` gives the GPM metrics since the last sample, `others` the other GPUs by index.
    """

    reader: NvmlReader
    subject: Subject
    rates: Rates
    gpm: Callable[[], dict[int, float]] = dict
    links: tuple[Subject, ...] = ()
    others: Callable[[], list[tuple[int, Device]]] = list

    def of_link(self, scope: object, link: int) -> Subject:
        return self.links[link] if scope is EACH_LINK else self.subject


def read_rows(rows: Rows, target: Target) -> Iterator[ReadValue]:
    """The values of all rows, of the target and its links; field values were read before."""
    gpm = target.gpm() if rows.gpm_metrics else {}
    ports = _read_ports(rows, target)
    for row in rows.rows:
        if isinstance(row.source, Gpm | GpmLink | PortCounter):
            found = _batched(row, target, gpm, ports)
        elif isinstance(row.source, FieldValue | FieldRate | LinkCall):
            found = _of_links(row, target)
        else:
            found = _of_calls(row, target)
        for subject, raw in found:
            if raw is None:
                continue
            try:
                value = row.value(raw)
            except _WRONG_SHAPE as error:
                _note_shape(target.reader, row, error)
                continue
            if value is not None:
                yield row.id, subject, value


def _of_calls(row: Row, target: Target) -> Iterator[tuple[Subject, Raw | None]]:
    """Of calls about the handle itself."""
    reader = target.reader
    match row.source:
        case DeviceCall() as source:
            answer = _call(reader, source, row.constants)
            if answer is not None:
                try:
                    raw = _raw(answer, source.items)
                except _WRONG_SHAPE as error:
                    _note_shape(reader, row, error)
                    return
                yield target.subject, raw
        case Verdict(function):
            yield target.subject, verdict_of(reader, function, row.constants[0])
        case PeerCall(function):
            yield target.subject, _peers(reader, function, row.constants[0], target.others)


def _of_links(row: Row, target: Target) -> Iterator[tuple[Subject, Raw | None]]:
    """Of a value that each link has, or the GPU as a whole."""
    reader = target.reader
    match row.source:
        case FieldValue(number, _, scope):
            for link in _links_of(scope):
                yield target.of_link(scope, link), reader.field(number, link)
        case FieldRate(numbers, _, scope):
            for link in _links_of(scope):
                parts = [reader.field(number, link) for number in numbers]
                yield target.of_link(scope, link), target.rates.rate((row.id, link), parts)
        case LinkCall(function, _, scope):
            for link in _links_of(scope):
                raw = reader.call(function, link, row.constants[0])
                yield target.of_link(scope, link), raw


def _batched(
    row: Row, target: Target, gpm: dict[int, float], ports: dict[tuple[int, int], Number]
) -> Iterator[tuple[Subject, Raw | None]]:
    """Of what was read in one call for all rows."""
    match row.source:
        case Gpm(metrics):
            known = [gpm[metric] for metric in metrics if metric in gpm]
            yield target.subject, sum(known) / len(known) if known else None
        case GpmLink(first, step):
            for link, subject in enumerate(target.links):
                yield subject, gpm.get(first + step * link)
        case PortCounter():
            for link, subject in enumerate(target.links):
                yield subject, ports.get((row.constants[0], link))


def _read_ports(rows: Rows, target: Target) -> dict[tuple[int, int], Number]:
    """All counters of all links' ports in one call. The port of link n has the number n + 1."""
    wanted = [
        (row.constants[0], link + 1)
        for row in rows.rows
        if isinstance(row.source, PortCounter)
        for link in range(len(target.links))
    ]
    if not wanted:
        return {}
    reader = target.reader
    answers = reader.ask(("ports",), lambda: port_counters(reader.device, wanted))
    return {
        (counter, port - 1): value
        for (counter, port), (code, value) in zip(wanted, answers or (), strict=False)
        if not code
    }


def _call(reader: NvmlReader, source: DeviceCall, constants: tuple[int, ...]) -> Any:
    if source.structure:
        return reader.structure(source.function, source.structure)
    return reader.call(source.function, *constants)


def _raw(answer: Any, items: tuple[str, ...]) -> Raw:
    if len(items) < 2:
        return number(member(answer, items[0]) if items else answer)
    numbers = tuple(number(member(answer, item)) for item in items)
    return tuple(n for n in numbers if not isinstance(n, tuple))


def _note_shape(reader: NvmlReader, row: Row, error: Exception) -> None:
    function = getattr(row.source, "function", f"field {row.id}")
    reader.problems[function, *row.constants] = f"{function} has another answer than known: {error}"


def verdict_of(reader: NvmlReader, function: str, refusal: int) -> int | None:
    """1 when the call succeeds, 0 when it fails with `refusal`."""

    def ask() -> int:
        try:
            call(function, reader.device)
        except DriverError as error:
            if error.code != refusal:
                raise
            return 0
        return 1

    found: int | None = reader.ask((function, "verdict"), ask)
    return found


def _peers(
    reader: NvmlReader,
    function: str,
    argument: int,
    others: Callable[[], list[tuple[int, Device]]],
) -> int | None:
    """A bit for each of the other GPUs, set where the status is OK."""

    def status(index: int, other: Device) -> int | None:
        found: int | None = reader.ask(
            (function, index, argument), lambda: call(function, reader.device, other, argument)
        )
        return found

    there: list[tuple[int, Device]] | None = reader.ask(("peers",), others)
    answers = [(index, status(index, device)) for index, device in there or ()]
    known = [(index, found) for index, found in answers if found is not None]
    if not known and there != []:
        return None
    return sum(1 << index for index, found in known if found == _OK)


# --- texts ----------------------------------------------------------------------------------------


def read_texts(plan: Plan, reader: NvmlReader) -> Iterator[tuple[int, str]]:
    """The texts of a GPU that become labels, by their number."""
    for text, source, constants in plan.texts:
        answer = _call(reader, source, constants)
        if answer is not None:
            found = member(answer, source.items[0]) if source.items else answer
            yield text.id, as_text(text.name, found)


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
