"""Keeps the last quarter of an hour of each GPU, in memory of a fixed size.

Time is divided into columns, counted on a clock that does not jump; each has the mean of what was
sampled in it. A GPU that was not read in a column, be it lost, busy or new, has a gap there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from datetime import datetime
from math import isnan, nan

from nodeagent.structs import Struct, field
from nodeagent.views.node_state import Reading
from nodeagent.views.shapes import GpuSeries, History
from nodeagent.views.text import time_json

COLUMNS = 90
SHORTEST_STEP = 10.0  # seconds
_MEBIBYTE = 1 << 20


def _rings() -> tuple[array[float], ...]:
    return tuple(array("f", [nan] * COLUMNS) for _ in range(4))


class _GpuRings(Struct):
    """The newest columns of a GPU, column n at n % COLUMNS, of what `GpuSeries` has, in its order.
    `last` is the newest that was written, `samples` how many each has in it. Memory is in MiB.
    """

    last: int
    samples: list[int] = field(default_factory=lambda: [0] * 4)
    rings: tuple[array[float], ...] = field(default_factory=_rings)

    def add(self, column: int, read: Reading) -> None:
        memory = None if read.memory is None else read.memory / _MEBIBYTE
        if column != self.last:
            self.samples = [0] * 4
        values = (read.utilization, memory, read.temperature, read.power)
        for number, (ring, value) in enumerate(zip(self.rings, values, strict=True)):
            for skipped in range(max(self.last, column - COLUMNS) + 1, column + 1):
                ring[skipped % COLUMNS] = nan
            if value is not None:
                self.samples[number] += 1
                mean = ring[column % COLUMNS] if self.samples[number] > 1 else value
                ring[column % COLUMNS] = mean + (value - mean) / self.samples[number]
        self.last = column

    def shape(self, columns: range) -> GpuSeries:
        written = range(self.last - COLUMNS + 1, self.last + 1)
        utilization, memory, temperature, power = (
            [
                round(mean) if n in written and not isnan(mean := ring[n % COLUMNS]) else None
                for n in columns
            ]
            for ring in self.rings
        )
        return GpuSeries(
            utilization=utilization,
            memory_used=[None if m is None else m * _MEBIBYTE for m in memory],
            temperature=temperature,
            power=power,
        )


class GpuHistories:
    """The histories of all GPUs. Times are seconds of a clock that does not jump.

    A column is as long as two samples at least, which come every `interval` seconds. A GPU of
    which nothing was read for as long as a history is forgotten.
    """

    def __init__(self, interval: float) -> None:
        self.step = max(SHORTEST_STEP, 2 * interval)
        self._first: int | None = None
        self._gpus: dict[str, _GpuRings] = {}

    def add(self, now: float, read: Mapping[str, Reading]) -> None:
        """Add what was just read of GPUs, by UUID."""
        column = int(now // self.step)
        if self._first is None:
            self._first = column
        for uuid, reading in read.items():
            gpu = self._gpus[uuid] = self._gpus.get(uuid) or _GpuRings(column)
            gpu.add(column, reading)
        self._gpus = {u: gpu for u, gpu in self._gpus.items() if column - gpu.last < COLUMNS}

    def shape(self, now: float, wall: datetime, gpu: str | None = None) -> History | None:
        """The histories up to now, which is `wall` on the node's clock; of one GPU, None where it
        has none.
        """
        if gpu is not None and gpu not in self._gpus:
            return None
        column = int(now // self.step)
        first = column if self._first is None else self._first
        columns = range(max(first, column - COLUMNS + 1), column + 1)
        return History(
            interval=self.step,
            end=time_json(wall),
            gpus={u: g.shape(columns) for u, g in self._gpus.items() if gpu in (None, u)},
        )
