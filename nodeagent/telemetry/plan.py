"""What has to be asked for the fields that are wanted: rows grouped by call, for each tier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from nodeagent.gpu.nvml_calls import constant
from nodeagent.metrics.catalogue import Field, Reading, TextField, Tier
from nodeagent.metrics.conversion import Conversion
from nodeagent.metrics.sources import (
    EACH_LINK,
    Composed,
    DeviceCall,
    Event,
    FieldRate,
    FieldValue,
    Gpm,
    GpmLink,
    LinkCall,
    PeerCall,
    PortCounter,
    SystemCall,
    Verdict,
)

ALL = -1  # stands for every link that the GPU has


@dataclass(frozen=True, slots=True)
class Row:
    """A field to be told, with what makes its value of the raw one."""

    id: int
    conversion: Conversion


@dataclass(frozen=True, slots=True)
class FromCall:
    """A row that wants these items of a call's answer."""

    row: Row
    items: tuple[str, ...]


@dataclass(slots=True)
class DeviceAsk:
    """A call about a handle, with all rows that are made of its answer."""

    function: str
    arguments: tuple[int, ...]
    structure: str
    rows: list[FromCall] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.function, *self.arguments)


@dataclass(slots=True)
class Asks:
    """All that is asked in one tier of one kind of thing: GPUs, GPU instances, or the node.

    In `fields`, `rates`, `links` and `gpm_links` the link ALL stands for each of them.
    """

    calls: dict[tuple[object, ...], DeviceAsk] = field(default_factory=dict)
    verdicts: list[tuple[Row, Verdict]] = field(default_factory=list)
    peers: list[tuple[Row, str, int]] = field(default_factory=list)
    fields: list[tuple[Row, int, int]] = field(default_factory=list)
    rates: list[tuple[Row, tuple[int, ...], int]] = field(default_factory=list)
    links: list[tuple[Row, str, int, int]] = field(default_factory=list)
    ports: list[tuple[Row, int]] = field(default_factory=list)
    gpm: list[tuple[Row, tuple[int, ...]]] = field(default_factory=list)
    gpm_links: list[tuple[Row, int, int]] = field(default_factory=list)
    system: list[tuple[Row, SystemCall]] = field(default_factory=list)

    def gpm_metrics(self, links: int) -> tuple[int, ...]:
        """Every GPM metric that is needed, where a GPU can have so many links."""
        wanted = {metric for _, metrics in self.gpm for metric in metrics}
        for _, first, step in self.gpm_links:
            wanted |= {first + step * link for link in range(links)}
        return tuple(sorted(wanted))


@dataclass(slots=True)
class Plan:
    """`whole` of GPUs and `part` of their instances, by tier. What is once is with the slow."""

    whole: dict[Tier, Asks]
    part: dict[Tier, Asks]
    texts: list[tuple[TextField, DeviceAsk]] = field(default_factory=list)
    node_texts: list[TextField] = field(default_factory=list)


READ = (Tier.FAST, Tier.SLOW, Tier.ONCE)


def make_plan(fields: Iterable[Field], texts: Iterable[TextField] = ()) -> Plan:
    """How to read these fields. Those that events tell are not in it."""
    plan = Plan({tier: Asks() for tier in READ}, {tier: Asks() for tier in READ})
    for row in fields:
        if row.tier is Tier.EVENT:
            continue
        _add(plan.whole[row.tier], row, row.whole)
        if row.part is not None:
            _add(plan.part[row.tier], row, row.part)
    for text in texts:
        if isinstance(text.source, DeviceCall):
            ask = _device_ask(text.source)
            ask.rows.append(FromCall(Row(text.id, Conversion.AS_IS), text.source.items))
            plan.texts.append((text, ask))
        else:
            plan.node_texts.append(text)
    return plan


def _add(asks: Asks, field_: Field, reading: Reading) -> None:
    row, source = Row(field_.id, reading.conversion), reading.source
    match source:
        case DeviceCall():
            ask = _device_ask(source)
            asks.calls.setdefault(ask.key, ask).rows.append(FromCall(row, source.items))
        case Verdict():
            asks.verdicts.append((row, source))
        case PeerCall(function, argument):
            asks.peers.append((row, function, constant(argument)))
        case SystemCall():
            asks.system.append((row, source))
        case Gpm(metrics):
            asks.gpm.append((row, metrics))
        case Event() | Composed():  # told by events, or made of other values
            return
        case FieldValue() | FieldRate() | LinkCall() | PortCounter() | GpmLink():
            _add_of_links(asks, row, source)
        case _:
            assert_never(source)


def _add_of_links(
    asks: Asks, row: Row, source: FieldValue | FieldRate | LinkCall | PortCounter | GpmLink
) -> None:
    match source:
        case LinkCall(function, counter, link):
            asks.links.append((row, function, _link(link), constant(counter)))
        case PortCounter(counter):
            asks.ports.append((row, constant(counter)))
        case FieldValue(number, _, scope):
            asks.fields.append((row, number, _link(scope)))
        case FieldRate(numbers, _, scope):
            asks.rates.append((row, numbers, _link(scope)))
        case GpmLink(first, step):
            asks.gpm_links.append((row, first, step))
        case _:
            assert_never(source)


def _device_ask(source: DeviceCall) -> DeviceAsk:
    return DeviceAsk(source.function, tuple(map(constant, source.arguments)), source.structure)


def _link(link: object) -> int:
    if link is EACH_LINK:
        return ALL
    if not isinstance(link, int):
        raise TypeError(f"{link!r} is no link")
    return link
