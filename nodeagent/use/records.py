"""Records of use by holder and kind of device: digests of a fixed size, and not too many of them.

Two generations are kept, so that of 14 days seven count at least. Where a generation is full, of
that half of it that was added to least recently the digest is forgotten that held least: pods that
come and go displace each other, and not a workload that is there now or was for long.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import accumulate, islice
from operator import add
from typing import Annotated, Final

from nodeagent.structs import Meta, Struct, field, replace

PodKey = tuple[str, str]  # namespace and name

MOST: Final = 512  # digests in a generation
_BINS: Final = 40
_QUANTITIES: Final = ("memory", "engine", "sm", "dram")
_SUMS: Final = ("held", "used", "measured", "at_limit", "idle_stretches")
_BYTES: Final = 4 * _BINS * len(_QUANTITIES)
_FULL: Final = 0.97  # of the granted memory
_STRETCH: Final = 60.0  # seconds
_RANDOM: Final = "[bcdfghjklmnpqrstvwxz2456789]"  # without vowels, unlike words
# The recording rules read names alike. First a pod-template-hash or the minute of a CronJob.
_MADE: Final = re.compile(rf"(-{_RANDOM}{{8,10}}|-\d{{8,}})?-({_RANDOM}{{5}}|\d+)$")


class Spread(Struct, frozen=True):
    """Of the seconds in which it was measured over a value. Percentiles are upper edges of bins,
    the peak is exact.
    """

    p50: float
    p95: float
    peak: float
    seconds: float = 0.0


class Holder(Struct, frozen=True):
    """Whose time it is. `kind`: workload (by the name of what controls its pods), pod (whose
    workload is not known yet), unit, user, or container (outside Kubernetes, by its id).
    """

    kind: str
    name: str
    namespace: str = ""
    container: str = ""

    @property
    def pod(self) -> PodKey:
        return self.namespace, self.name

    def named(self, workload: str) -> Holder:
        """In place of a pod its workload; "": by the pod's name without what was made for it."""
        name = workload or _MADE.sub("", self.name) or self.name
        return replace(self, kind="workload", name=name) if self.kind == "pod" else self


class Grant(Struct, frozen=True):
    """What a holder was given: a kind of device (a MIG profile, `gpu`, or `share` for a part of
    one) of a card of this model, bytes, and percent of the multiprocessors (None: not limited).
    """

    device: str
    model: str
    memory: int
    threads: float | None = None


class Use(Struct, frozen=True):
    """What a holder did with what it was granted: `held` and `used` are seconds of the device,
    idle stretches of a minute and more, `at_limit` seconds with its memory full. None: it was
    never measured.
    """

    holder: Holder
    grant: Grant
    held: float = 0.0
    used: float | None = None
    at_limit: float = 0.0
    idle_stretches: int = 0
    longest_idle: float = 0.0
    memory: Spread | None = None
    engine: Spread | None = None
    sm: Spread | None = None
    dram: Spread | None = None


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
    """The times as `Use` has them, and those of which activity was measured; of each quantity its
    peak, and seconds by bins of its range.
    """

    held: float = 0.0
    used: float = 0.0
    measured: float = 0.0
    at_limit: float = 0.0
    idle_stretches: int = 0
    longest_idle: float = 0.0
    peaks: list[float] = field(default_factory=lambda: [0.0] * len(_QUANTITIES))
    bins: bytearray = field(default_factory=lambda: bytearray(_BYTES))

    def __post_init__(self) -> None:
        if len(self.bins) != _BYTES or len(self.peaks) != len(_QUANTITIES):
            raise ValueError("a digest has bins of another number")

    def merged(self, other: Digest) -> Digest:
        """Both as one."""
        bins = array("f", map(add, *(memoryview(d.bins).cast("f") for d in (self, other))))
        return Digest(
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
            longest_idle=max(self.longest_idle, other.longest_idle),
            peaks=list(map(max, self.peaks, other.peaks)),
            bins=bytearray(bins.tobytes()),
        )


Key = tuple[Holder, Grant]


class KeptRecords(Struct, frozen=True):
    """Records to be kept: `saved` by the wall clock, when the newer generation was `age` seconds
    old. Those that were added to least recently come first. `idle`, `held` and `seen` are as
    `Records` has them, in this `boot` of the machine.
    """

    saved: float
    age: Annotated[float, Meta(ge=0)] = 0.0
    newer: tuple[tuple[Key, Digest], ...] = ()
    older: tuple[tuple[Key, Digest], ...] = ()
    idle: Mapping[str, float] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    seen: float = 0.0
    boot: str = ""


class Records:
    """Adds up what holders did in the last `days`. `idle`: for how long who does nothing has;
    `held`: who had something when that was `seen` last.

    Goes on with what an earlier agent kept, be it of other days. A clock that is behind it says no
    age.
    """

    def __init__(
        self, days: int = 14, kept: KeptRecords | None = None, wall: float = 0.0, boot: str = ""
    ) -> None:
        kept = kept or KeptRecords(wall)
        self._length = days * 86400 / 2  # seconds of a generation
        self._newer, self._older = dict(kept.newer), dict(kept.older)
        self._written = frozenset(map(id, self._newer.values()))  # digests
        ours = kept if kept.boot == boot else KeptRecords(wall)
        self.idle, self.held, self.seen = ours.idle, ours.held, ours.seen
        self._age, self._boot = 0.0, boot
        away = min(max(wall - kept.saved, 0.0), 2 * self._length)
        self.grow_older(min(kept.age, self._length) + away)

    def uses(self) -> Iterator[Use]:
        """What both generations have, one by one: more may be added between two."""
        found: dict[Key, list[Digest]] = defaultdict(list)
        for (holder, grant), digest in (*self._older.items(), *self._newer.items()):
            found[holder.named(""), grant].append(digest)
        for (holder, grant), digests in found.items():
            digest = reduce(Digest.merged, digests)
            bins = memoryview(digest.bins).cast("f")
            spreads = (
                _spread(bins[row * _BINS :][:_BINS], _top(name, grant), digest.peaks[row])
                for row, name in enumerate(_QUANTITIES)
            )
            used = digest.used if digest.measured else None
            idle = digest.idle_stretches, digest.longest_idle
            yield Use(holder, grant, digest.held, used, digest.at_limit, *idle, *spreads)

    def kept(self, wall: float) -> KeptRecords:
        """As they are now, to be written: to each of these digests nothing is added any more."""
        self._written = frozenset(map(id, self._newer.values()))
        newer, older = tuple(self._newer.items()), tuple(self._older.items())
        now = self.idle, self.held, self.seen, self._boot
        return KeptRecords(wall, self._age, newer, older, *now)

    def grow_older(self, passed: float) -> None:
        """Let seconds pass, whether or not anything was held."""
        self._age += passed
        while self._age >= self._length:
            self._age -= self._length
            self._newer, self._older = {}, self._newer

    def add(
        self, key: Key, measured: Measured, *, passed: float, active: float | None, sharing: int
    ) -> None:
        """Count `passed` seconds of a device of which the holder was one of `sharing`; it was
        `active` for a part of them (None: not measured).
        """
        (holder, grant), digest = key, self._newer.pop(key, None) or Digest()
        nameless = (replace(holder, container=""), grant) if holder.container else key
        if first := self._newer.pop(nameless, None):  # a container is known soon after its pod
            digest = first.merged(digest)
        if id(digest) in self._written:
            digest = replace(digest, peaks=digest.peaks[:], bins=digest.bins[:])
        if len(self._newer) >= MOST:
            old = islice(self._newer, MOST // 2)
            del self._newer[min(old, key=lambda key: self._newer[key].held)]
        self._newer[key] = digest  # as the newest
        held = passed / sharing
        digest.held += held
        if active is not None:
            digest.used += held * active
            digest.measured += held
        digest.longest_idle = max(digest.longest_idle, measured.idle)
        digest.idle_stretches += measured.idle - passed < _STRETCH <= measured.idle
        bins = memoryview(digest.bins).cast("f")
        for row, name in enumerate(_QUANTITIES):
            if (value := getattr(measured, name)) is not None:
                digest.peaks[row] = max(digest.peaks[row], value)
                part = value / _top(name, grant)
                bins[row * _BINS + min(int(part * _BINS), _BINS - 1)] += passed
        if measured.memory is not None and measured.memory >= _FULL * grant.memory:
            digest.at_limit += passed

    @property
    def pods(self) -> set[PodKey]:
        """Those whose workloads are not known yet, and that have records of their own until then:
        the name of one may be like that of another workload.
        """
        return {holder.pod for holder, _ in (*self._older, *self._newer) if holder.kind == "pod"}

    def name_workloads(self, workloads: Mapping[PodKey, str]) -> None:
        """Count for its workload what each of these pods did; "": the one by its name."""
        for kept in (self._older, self._newer):
            for holder, grant in [key for key in kept if key[0].pod in workloads]:
                key, digest = (holder.named(workloads[holder.pod]), grant), kept[holder, grant]
                del kept[holder, grant]
                before = kept.pop(key, None)
                kept[key] = before.merged(digest) if before else digest


def _top(quantity: str, grant: Grant) -> float:
    """The most that there can be of it with what was granted, which the bins divide."""
    if quantity == "memory":
        return float(grant.memory or 1)
    return grant.threads or 100.0 if quantity == "sm" else 100.0


def _spread(bins: Iterable[float], top: float, peak: float) -> Spread | None:
    sums = list(accumulate(bins))
    if not sums[-1]:
        return None
    p50, p95 = (
        min(top * (bisect_left(sums, part * sums[-1]) + 1) / _BINS, peak) for part in (0.5, 0.95)
    )
    return Spread(p50, p95, peak, sums[-1])
