"""Every reading has its source, and every name of it exists in pynvml."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pynvml
import pytest

from nodeagent.health import readings
from nodeagent.health.readings import GpuEventKind, GpuReading, NodeReading
from nodeagent.health.sources import SOURCES, ReadingSource, Tier

# Read as one value by one call, or as a whole.
_WHOLE = {"EccErrors", "RemappedRows", "RowHistogram", "RetiredPages", "Fabric", "ModeReading",
          "Answer"}  # fmt: skip


def _fields() -> set[str]:
    """`ecc.mode`, `memory.rows`, `NodeReading.at`: what has to be read."""
    types = {name: value for name, value in vars(readings).items() if is_dataclass(value)}
    found = {f"NodeReading.{field.name}" for field in fields(NodeReading)}
    for field in fields(GpuReading):
        parts = [
            part
            for name, part in types.items()
            if name not in _WHOLE and name in str(field.type).replace("[", " ").replace(",", " ")
            .split()
        ]  # fmt: skip
        if parts:
            found |= {f"{field.name}.{inner.name}" for inner in fields(parts[0])}
        else:
            found.add(field.name)
    return found


def test_every_reading_has_one_source() -> None:
    """Whoever samples finds a row for each field, and none for what there is not."""
    named = [source.field for source in SOURCES]
    assert len(set(named)) == len(named)
    assert set(named) == _fields()


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.field)
def test_its_names_exist(source: ReadingSource) -> None:
    """Each function, field id, constant and structure is one of pynvml's."""
    for name in source.names:
        assert hasattr(pynvml, name), name
    assert source.names or source.how
    assert source.tier is not Tier.OWN or not source.names


def test_the_events_are_those_of_the_list() -> None:
    """The kinds of events are pynvml's bits, and all of them are to be registered."""
    row = next(s for s in SOURCES if s.field == "NodeReading.events")
    assert set(row.names) == {kind.value for kind in GpuEventKind}
