"""Families of series as Prometheus' text format 0.0.4, written once and served as bytes.

prometheus_client is not used for it: it renames counters, sorts labels, prints other numbers and
takes some 50 times as long. Its parser reads what is written here back in the tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import isfinite

from nodeagent.metrics.conversion import Number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_GZIP = 31  # zlib's window bits for a gzip member of 32 KiB
_FASTEST = 1  # a level above it takes several times as long for a few percent
_LEAST = 5e-7  # below it six decimals would say 0


class Form(Enum):
    """How numbers are written: DCGM has whole ones and doubles with six decimals."""

    WHOLE = auto()
    DECIMALS = auto()
    EXACT = auto()  # all digits that a float has


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name, by their label block; values that are not finite are left out.

    `suffixed` are the series of a histogram, whole lines without the name.
    """

    name: str
    type: str
    help: str
    series: Mapping[str, Number]
    form: Form = Form.EXACT
    suffixed: tuple[str, ...] = ()


def render(families: Iterable[Family]) -> bytes:
    """The text. Families without series are left out; so no name has HELP and TYPE alone."""
    written: list[str] = []
    for family in families:
        lines = _lines(family)
        if lines:
            told = family.help.translate(_HELP_ESCAPES)
            written.append(f"# HELP {family.name} {told}\n# TYPE {family.name} {family.type}\n")
            written += lines
    # Half of a surrogate pair, which JSON and names of files can have, must not cost all the rest.
    return "".join(written).encode(errors="replace")


def _lines(family: Family) -> list[str]:
    name = family.name
    if family.suffixed:
        return [f"{name}{line}\n" for line in family.suffixed]
    written = _WRITTEN[family.form]
    return [
        f"{name}{labels} {written(value)}\n"
        for labels, value in family.series.items()
        if isfinite(value)
    ]


def _decimals(value: Number) -> str:
    """Six decimals; a small number that would lose everything keeps its digits instead."""
    if value and abs(value) < _LEAST:
        return f"{value:.6e}"
    return f"{value:.6f}"


def _whole(value: Number) -> str:
    return str(value if type(value) is int else round(value))


_WRITTEN = {Form.WHOLE: _whole, Form.DECIMALS: _decimals, Form.EXACT: repr}


@dataclass(slots=True)
class Page:
    """A text that was written once, to which each scrape may add a few lines.

    Compressing is done once too, when somebody first asks for it; what is added is compressed
    alone and follows in the same gzip member.
    """

    body: bytes
    _begun: tuple[bytes, zlib._Compress] | None = field(default=None, repr=False)

    def text(self, added: bytes = b"") -> bytes:
        """The whole text."""
        return self.body + added if added else self.body

    def gzipped(self, added: bytes = b"") -> bytes:
        """The same, compressed."""
        if self._begun is None:
            compressor = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP)
            begun = compressor.compress(self.body) + compressor.flush(zlib.Z_SYNC_FLUSH)
            self._begun = (begun, compressor)
        begun, compressor = self._begun
        end = compressor.copy()
        return begun + end.compress(added) + end.flush()
