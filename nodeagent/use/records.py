"""Records of use by holder and kind of device: digests of a fixed size, and not too many of them.

Two generations are kept, so that seven days count at least and fourteen at most. Where a generation
is full, the digest that was added to least recently is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Annotated, Final

from nodeagent.structs import Meta, Struct, field, replace
from nodeagent.use.digest import Holder, Spread, Use

LENGTH: Final = 7 * 86400.0  # seconds of a generation
MOST: Final = 512  # digests in a generation
_BINS: Final = 64
_QUANTITIES: Final = ("memory", "engine", "sm", "dram")
_BYTES: Final = 4 * _BINS * len(_QUANTITIES)
_FULL: Final = 0.97  # of the granted memory
_STRETCH: Final = 60.0  # seconds


class Grant(Struct, frozen=True):
    """What a holder was given, in the words of `Use`."""

    device: str
    model: str
    memory: int
    threads: float | None = None


class Measured(Struct, frozen=True):
    """What a holder did just now, bytes and percent; None: not measured. `idle`: for how many
    seconds it has done nothing.
    """

    memory: float | None = None
    engine: float | None = None
    sm: float | None = None
    dram: float | None = None
    idle: float = 0.0


class Digest(Struct):
    """The times as `Use` has them; of each quantity its peak, and seconds by bins of its range."""

    held: float = 0.0
    used: float = 0.0
    slices: float = 0.0
    idle_stretches: int = 0
    longest_idle: float = 0.0
    at_limit: float = 0.0
    first_seen: float = 0.0
    last_seen: float = 0.0
    peaks: list[float] = field(default_factory=lambda: [0.0] * len(_QUANTITIES))
    bins: bytearray = field(default_factory=lambda: bytearray(_BYTES))

    def __post_init__(self) -> None:
        if len(self.bins) != _BYTES or len(self.peaks) != len(_QUANTITIES):
            raise ValueError("a digest has bins of another number")

    def count(self, held: float, measured: Measured, memory: int) -> None:
        """Count what was measured for `held` seconds; `memory` was granted."""
        bins = memoryview(self.bins).cast("f")
        for row, name in enumerate(_QUANTITIES):
            value = getattr(measured, name)
            if value is not None:
                top = _top(name, memory)
                self.peaks[row] = max(self.peaks[row], value)
                bins[row * _BINS + min(int(value / top * _BINS), _BINS - 1)] += held
        if measured.memory is not None and measured.memory >= _FULL * memory:
            self.at_limit += held

    def rows(self) -> Iterator[Sequence[float]]:
        bins: Sequence[float] = memoryview(self.bins).cast("f").tolist()
        return (bins[start : start + _BINS] for start in range(0, len(bins), _BINS))


Key = tuple[Holder, Grant]


class KeptRecords(Struct, frozen=True):
    """Records to be kept: `saved` by the wall clock, when the newer generation was `age` seconds
    old. Those that were added to least recently come first.
    """

    saved: float = 0.0
    age: Annotated[float, Meta(ge=0, le=LENGTH)] = 0.0
    newer: tuple[tuple[Key, Digest], ...] = ()
    older: tuple[tuple[Key, Digest], ...] = ()


class Records:
    """Adds up what holders did."""

    def __init__(self) -> None:
        self._age = 0.0
        self._newer: dict[Key, Digest] = {}
        self._older: dict[Key, Digest] = {}

    @property
    def is_empty(self) -> bool:
        return not self._newer and not self._older

    def restore(self, kept: KeptRecords, wall: float) -> None:
        """Go on with what an earlier agent kept. A clock that is behind it says no age."""
        self._newer = dict(kept.newer)
        self._older = dict(kept.older)
        self.grow_older(kept.age + min(max(wall - kept.saved, 0.0), 2 * LENGTH))

    def kept(self, wall: float) -> KeptRecords:
        """A copy to be written."""
        newer, older = (
            tuple((key, replace(d, peaks=[*d.peaks], bins=d.bins[:])) for key, d in some.items())
            for some in (self._newer, self._older)
        )
        return KeptRecords(wall, self._age, newer, older)

    def grow_older(self, passed: float) -> None:
        """Let seconds pass, whether or not anything was held."""
        self._age += passed
        while self._age >= LENGTH:
            self._age -= LENGTH
            self._newer, self._older = {}, self._newer

    def add(
        self,
        key: Key,
        measured: Measured,
        *,
        passed: float,
        active: float,
        sharing: int,
        part: float,
        wall: float,
    ) -> None:
        """Count `passed` seconds, which end at `wall`, of a device of which the holder was one of
        `sharing` and which is a `part` of its card; it was `active` for a part of them.
        """
        digest = self._newer.pop(key, None) or Digest(first_seen=wall - passed)
        if len(self._newer) >= MOST:
            del self._newer[next(iter(self._newer))]
        self._newer[key] = digest  # as the newest
        held = passed / sharing
        digest.held += held
        digest.used += held * active
        digest.slices += held * part
        digest.last_seen = wall
        digest.longest_idle = max(digest.longest_idle, measured.idle)
        digest.idle_stretches += measured.idle - passed < _STRETCH <= measured.idle
        digest.count(held, measured, key[1].memory)

    def uses(self) -> tuple[Use, ...]:
        """What both generations have, the latest last."""
        keys = dict.fromkeys((*self._older, *self._newer))
        return tuple(_use(key, self._older.get(key), self._newer.get(key)) for key in keys)


def _top(quantity: str, memory: int) -> float:
    return float(memory or 1) if quantity == "memory" else 100.0


def _use(key: Key, older: Digest | None, newer: Digest | None) -> Use:
    holder, grant = key
    both = [digest for digest in (older, newer) if digest]
    spreads = {}
    for row, (name, columns) in enumerate(
        zip(_QUANTITIES, zip(*(digest.rows() for digest in both), strict=True), strict=True)
    ):
        together = columns[0] if len(columns) == 1 else list(map(add, *columns))
        peak = max(digest.peaks[row] for digest in both)
        spreads[name] = _spread(together, _top(name, grant.memory), peak)
    return Use(
        holder,
        grant.device,
        grant.model,
        grant.memory,
        grant.threads,
        held=sum(d.held for d in both),
        used=sum(d.used for d in both),
        slices=sum(d.slices for d in both),
        idle_stretches=sum(d.idle_stretches for d in both),
        longest_idle=max(d.longest_idle for d in both),
        at_limit=sum(d.at_limit for d in both),
        first_seen=both[0].first_seen,
        last_seen=both[-1].last_seen,
        **spreads,
    )


def _spread(bins: Iterable[float], top: float, peak: float) -> Spread | None:
    sums = list(accumulate(bins))
    if not sums[-1]:
        return None
    p50, p95 = (
        min(top * (bisect_left(sums, part * sums[-1]) + 1) / _BINS, peak) for part in (0.5, 0.95)
    )
    return Spread(p50, p95, peak)
