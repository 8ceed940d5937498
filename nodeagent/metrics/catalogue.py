"""Every field there is: what it is called, what it means and where its value comes from.

The rows are data (`fields.json`); `tools/make_metric_fields.py` wrote them and says from what.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from nodeagent.metrics.sources import (
    EACH_LINK,
    Composed,
    Composition,
    Conversion,
    DeviceCall,
    Event,
    FieldRate,
    FieldValue,
    Gpm,
    GpmLink,
    Happening,
    Link,
    LinkCall,
    PeerCall,
    PortCounter,
    Source,
    SystemCall,
    Verdict,
)

Json = Mapping[str, Any]


class Kind(StrEnum):
    """A counter only grows while the driver stays loaded; a gauge goes both ways."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"  # the agent's own alone


class Level(StrEnum):
    """The finest thing that a field has values of."""

    NODE = "node"
    GPU = "gpu"
    GPU_INSTANCE = "gpuInstance"
    LINK = "link"


class WithMig(StrEnum):
    """What is left of a whole GPU's value while its MIG mode is on."""

    STAYS = "stays"
    GONE = "gone"
    UNPROVEN = "unproven"  # not documented; ask, and leave it out when it is refused


class Tier(StrEnum):
    """How often a value is worth reading."""

    FAST = "fast"
    SLOW = "slow"
    ONCE = "once"  # does not change while the driver is loaded
    EVENT = "event"  # reported, not read


@dataclass(frozen=True, slots=True)
class Reading:
    """How a value is got: from where, and what makes the exported unit of it."""

    source: Source
    conversion: Conversion = Conversion.AS_IS


@dataclass(frozen=True, slots=True)
class Field:
    """A numeric field.

    `id` is DCGM's number; families are written in its order. `renamed` is the name since DCGM 4.6,
    `earlier` that of dcgm-exporter 1 where it had one. `kind` is what the value really is,
    `printed_kind` what dcgm-exporter's own file calls it. `real`: written with six decimals, else
    as a whole number. `whole` is how to read it of a GPU, link or node, `part` of a GPU
    instance (None: not there). `min_architecture` is the oldest that answers, empty: any.
    """

    id: int
    name: str
    renamed: str
    kind: Kind
    unit: str
    help: str
    level: Level
    with_mig: WithMig
    tier: Tier
    whole: Reading
    part: Reading | None = None
    real: bool = False
    earlier: str = ""
    printed_kind: Kind | None = None
    in_default: bool = False
    min_architecture: str = ""
    since: str = ""
    note: str = ""

    @property
    def type(self) -> Kind:
        """The type that is written when a selection does not say another."""
        return self.printed_kind or self.kind


@dataclass(frozen=True, slots=True)
class TextField:
    """A field whose value is a text: it can only be a label of all metrics."""

    id: int
    name: str
    renamed: str
    help: str
    level: Level
    source: Source
    in_default: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All rows in the order of their ids. `unavailable`: DCGM's fields that NVML cannot give."""

    fields: tuple[Field, ...]
    texts: tuple[TextField, ...]
    unavailable: frozenset[str]
    provenance: str
    _by_name: Mapping[str, Field | TextField] = field(repr=False)

    def named(self, name: str) -> Field | TextField | None:
        """The row of a name: old, renamed or that of dcgm-exporter 1."""
        return self._by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a selection can use."""
        return tuple(self._by_name)

    @property
    def from_nvml(self) -> tuple[Field, ...]:
        """The numeric fields less those that dcgm-exporter composes itself."""
        return tuple(f for f in self.fields if not isinstance(f.whole.source, Composed))


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue; read once."""
    text = (pkgutil.get_data("nodeagent.metrics", "fields.json") or b"").decode()
    raw = json.loads(text)
    fields = tuple(map(_field, raw["fields"]))
    texts = tuple(map(_text_field, raw["texts"]))
    rows: tuple[Field | TextField, ...] = (*fields, *texts)
    by_name: dict[str, Field | TextField] = {}
    for row in rows:
        by_name.setdefault(row.renamed, row)
        if isinstance(row, Field) and row.earlier:
            by_name[row.earlier] = row
    # Old names last: where DCGM gave a name to another field, the old meaning is what is asked for.
    by_name.update({row.name: row for row in rows})
    return Catalogue(
        fields=fields,
        texts=texts,
        unavailable=frozenset(raw["unavailable"]),
        provenance=raw["provenance"],
        _by_name=MappingProxyType(by_name),
    )


# --- rows out of JSON -----------------------------------------------------------------------------


def _field(raw: Json) -> Field:
    part = raw.get("part")
    printed = raw.get("printedKind")
    return Field(
        id=raw["id"],
        name=raw["name"],
        renamed=raw["renamed"],
        earlier=raw.get("earlier", ""),
        kind=Kind(raw["kind"]),
        printed_kind=Kind(printed) if printed else None,
        unit=raw.get("unit", ""),
        help=raw["help"],
        level=Level(raw["level"]),
        with_mig=WithMig(raw["withMig"]),
        tier=Tier(raw["tier"]),
        whole=_reading(raw["whole"]),
        part=_reading(part) if part else None,
        real=raw.get("real", False),
        in_default=raw.get("default", False),
        min_architecture=raw.get("minArchitecture", ""),
        since=raw.get("since", ""),
        note=raw.get("note", ""),
    )


def _text_field(raw: Json) -> TextField:
    return TextField(
        id=raw["id"],
        name=raw["name"],
        renamed=raw["renamed"],
        help=raw["help"],
        level=Level(raw["level"]),
        source=_source(raw["source"]),
        in_default=raw.get("default", False),
    )


def _reading(raw: Json) -> Reading:
    return Reading(_source(raw), Conversion(raw.get("conversion", Conversion.AS_IS)))


def _source(raw: Json) -> Source:
    """`from` says which kind of source it is."""
    return _SOURCES[raw["from"]](raw)


def _link(raw: int | str) -> Link:
    return raw if isinstance(raw, int) else EACH_LINK


def _several(raw: Json, key: str) -> tuple[Any, ...]:
    return tuple(raw.get(key, ()))


_SOURCES: Mapping[str, Callable[[Json], Source]] = {
    "system": lambda raw: SystemCall(raw["function"], _several(raw, "items")),
    "device": lambda raw: DeviceCall(
        raw["function"],
        _several(raw, "arguments"),
        _several(raw, "items"),
        raw.get("structure", ""),
    ),
    "verdict": lambda raw: Verdict(raw["function"], raw["refusal"]),
    "peers": lambda raw: PeerCall(raw["function"], raw["argument"]),
    "link": lambda raw: LinkCall(raw["function"], raw["counter"], _link(raw["link"])),
    "port": lambda raw: PortCounter(raw["counter"]),
    "field": lambda raw: FieldValue(raw["field"], raw["constant"], _link(raw.get("scope", 0))),
    "fieldRate": lambda raw: FieldRate(
        _several(raw, "fields"), _several(raw, "constants"), _link(raw.get("scope", 0))
    ),
    "gpm": lambda raw: Gpm(_several(raw, "metrics"), _several(raw, "constants")),
    "gpmLink": lambda raw: GpmLink(raw["first"], raw["step"], raw["constant"]),
    "event": lambda raw: Event(Happening(raw["happening"])),
    "composed": lambda raw: Composed(Composition(raw["composition"]), _several(raw, "labels")),
}
