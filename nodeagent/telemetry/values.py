"""Values of fields out of what NVML answers: for one GPU as a whole, or one of its instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml import MOST_LINKS, Device
from nodeagent.gpu.nvml_calls import (
    FieldId,
    call,
    constant,
    member,
    number,
    port_counters,
)
from nodeagent.metrics.conversion import Conversion, Number, Raw, converted
from nodeagent.metrics.samples import Subject
from nodeagent.telemetry.nvml_reader import NvmlReader
from nodeagent.telemetry.plan import ALL, Asks, DeviceAsk, Row

Told = tuple[int, Subject, Number]
OfLink = Callable[[int], Subject]

_WRONG_SHAPE = (TypeError, ValueError, AttributeError, IndexError)
_OK = 0  # NVML_P2P_STATUS_OK


def links_of(link: int) -> Iterable[int]:
    """The links that a row means."""
    return range(MOST_LINKS) if link == ALL else (link,)


def fields_of(asks: Asks) -> Iterator[FieldId]:
    """The field values that are needed."""
    for _, field, scope in asks.fields:
        for link in links_of(scope):
            yield field, link
    for _, fields, scope in asks.rates:
        for link in links_of(scope):
            for field in fields:
                yield field, link


def answer_of(reader: NvmlReader, ask: DeviceAsk) -> Any:
    """What a call says about the handle."""
    if ask.structure:
        return reader.structure(ask.function, ask.structure)
    return reader.call(ask.function, *ask.arguments)


def from_calls(reader: NvmlReader, asks: Asks, subject: Subject) -> Iterator[Told]:
    """The rows of calls about the handle itself."""
    for ask in asks.calls.values():
        answer = answer_of(reader, ask)
        if answer is None:
            continue
        for wanted in ask.rows:
            try:
                raw = _raw(answer, wanted.items)
                value = converted(wanted.row.conversion, raw)
            except _WRONG_SHAPE as error:
                reader.problems[ask.key] = f"{ask.function} has another answer than known: {error}"
                continue
            if value is not None:
                yield wanted.row.id, subject, value


def _raw(answer: Any, items: tuple[str, ...]) -> Raw:
    if not items:
        return number(answer)
    if len(items) == 1:
        return number(member(answer, items[0]))
    numbers = tuple(number(member(answer, item)) for item in items)
    return tuple(n for n in numbers if not isinstance(n, tuple))


def _told(row: Row, subject: Subject, raw: Number | None) -> Iterator[Told]:
    if raw is None:
        return
    value = raw if row.conversion is Conversion.AS_IS else converted(row.conversion, raw)
    if value is not None:
        yield row.id, subject, value


def from_fields(reader: NvmlReader, asks: Asks, whole: Subject, of_link: OfLink) -> Iterator[Told]:
    """The rows of field values, which have been read already."""
    for row, field, scope in asks.fields:
        for link in links_of(scope):
            subject = of_link(link) if scope == ALL else whole
            yield from _told(row, subject, reader.field(field, link))


class Rates:
    """What sums of field values grow by, a second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[int, int], tuple[float, Number]] = {}

    def read(
        self, reader: NvmlReader, asks: Asks, whole: Subject, of_link: OfLink
    ) -> Iterator[Told]:
        """Of the fields that have been read just now."""
        now = self._clock()
        for row, fields, scope in asks.rates:
            for link in links_of(scope):
                subject = of_link(link) if scope == ALL else whole
                values = [reader.field(field, link) for field in fields]
                there = [value for value in values if value is not None]
                if len(there) == len(values):
                    yield from _told(row, subject, self._rate((row.id, link), now, sum(there)))
                else:
                    self._last.pop((row.id, link), None)

    def _rate(self, key: tuple[int, int], now: float, total: Number) -> float | None:
        before = self._last.get(key)
        self._last[key] = (now, total)
        if before is None or total < before[1] or now <= before[0]:
            return None  # the first, or it began anew
        return (total - before[1]) / (now - before[0])


def from_gpm(
    asks: Asks, found: dict[int, float], subject: Subject, of_link: OfLink | None = None
) -> Iterator[Told]:
    """The rows of GPM metrics."""
    for row, metrics in asks.gpm:
        there = [found[metric] for metric in metrics if metric in found]
        if there:
            value = converted(row.conversion, sum(there) / len(there))
            if value is not None:
                yield row.id, subject, value
    if of_link is not None:
        for row, first, step in asks.gpm_links:
            for link in range(MOST_LINKS):
                yield from _told(row, of_link(link), found.get(first + step * link))


def from_links(reader: NvmlReader, asks: Asks, whole: Subject, of_link: OfLink) -> Iterator[Told]:
    """The rows of calls about one link each, and those of the links' ports."""
    for row, function, wanted, counter in asks.links:
        for link in links_of(wanted):
            subject = of_link(link) if wanted == ALL else whole
            yield from _told(row, subject, reader.call(function, link, counter))
    if asks.ports:
        yield from _from_ports(reader, asks, of_link)


def _from_ports(reader: NvmlReader, asks: Asks, of_link: OfLink) -> Iterator[Told]:
    """All counters of all ports in one call. The port of link n has the number n + 1."""
    wanted = [(counter, link + 1) for _, counter in asks.ports for link in range(MOST_LINKS)]
    answers = reader.ask(("ports",), lambda: port_counters(reader.device, wanted))
    if answers is None:
        return
    found = dict(zip(wanted, answers, strict=True))
    for row, counter in asks.ports:
        for link in range(MOST_LINKS):
            code, value = found[counter, link + 1]
            if not code:
                yield from _told(row, of_link(link), value)


def from_verdicts(reader: NvmlReader, asks: Asks, subject: Subject) -> Iterator[Told]:
    """The rows of calls that only succeed or fail."""
    for row, verdict in asks.verdicts:
        value = verdict_of(reader, verdict.function, constant(verdict.refusal))
        if value is not None:
            yield row.id, subject, value


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


def from_peers(
    reader: NvmlReader, asks: Asks, subject: Subject, others: Callable[[], list[tuple[int, Device]]]
) -> Iterator[Told]:
    """The rows about this GPU and each of the others."""
    if not asks.peers:
        return
    there = reader.ask(("peers",), others)
    for row, function, argument in asks.peers:
        answers = [
            (index, _status(reader, function, index, device, argument))
            for index, device in there or ()
        ]
        known = [(index, status) for index, status in answers if status is not None]
        if known or there == []:
            yield row.id, subject, sum(1 << index for index, status in known if status == _OK)


def _status(
    reader: NvmlReader, function: str, index: int, other: Device, argument: int
) -> int | None:
    found: int | None = reader.ask(
        (function, index, argument), lambda: call(function, reader.device, other, argument)
    )
    return found
