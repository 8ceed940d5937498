"""Every field there is: what it is called, what it means and where its value comes from.

The rows are data (`fields.json`); `tools/make_metric_fields.py` wrote them and says from what.
"""

import pkgutil
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property, lru_cache

from msgspec import Struct, field, json

from nodeagent.metrics.sources import Source


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


class Field(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A numeric field.

    `id` is DCGM's number; families are written in its order. `renamed` is the name since DCGM 4.6,
    `earlier` an older one where there is one. `kind` is what the value really is,
    `printed_kind` what dcgm-exporter's own file calls it. `real`: written with six decimals, else
    as a whole number. `whole` is where the value of a GPU, link or node comes from, `part` that of
    a GPU instance (None: not there). `min_architecture` is the oldest that answers, empty: any.
    """

    id: int
    name: str
    renamed: str
    kind: Kind
    help: str
    level: Level
    with_mig: WithMig
    tier: Tier
    whole: Source
    part: Source | None = None
    unit: str = ""
    real: bool = False
    earlier: str = ""
    printed_kind: Kind | None = None
    in_default: bool = field(name="default", default=False)
    min_architecture: str = ""
    since: str = ""
    note: str = ""

    @property
    def type(self) -> Kind:
        return self.printed_kind or self.kind


class TextField(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A field whose value is a text: it can only be a label of all metrics."""

    id: int
    name: str
    renamed: str
    help: str
    level: Level
    source: Source
    in_default: bool = field(name="default", default=False)


class Catalogue(Struct, frozen=True, dict=True):
    """All rows in the order of their ids. `unavailable`: DCGM's fields that NVML cannot give.
    `composed`: what dcgm-exporter itself makes of many readings.
    """

    fields: tuple[Field, ...]
    texts: tuple[TextField, ...]
    unavailable: frozenset[str]
    composed: tuple[Field, ...]
    provenance: str

    @cached_property
    def by_name(self) -> Mapping[str, Field | TextField]:
        """The rows by every name that a selection can use: old, renamed, older."""
        rows: tuple[Field | TextField, ...] = (*self.fields, *self.composed, *self.texts)
        found = {row.renamed: row for row in reversed(rows)}
        found |= {row.earlier: row for row in self.fields if row.earlier}
        # Where DCGM gave a name to another field, the old meaning is what is asked for.
        return found | {row.name: row for row in rows}


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue; read once."""
    text = pkgutil.get_data("nodeagent.metrics", "fields.json") or b""
    return json.decode(text, type=Catalogue)
