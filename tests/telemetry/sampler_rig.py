"""Samplers with short deadlines, and what they sampled, by field."""

import time
from collections.abc import Callable, Iterable

from nodeagent.gpu.driver import Driver
from nodeagent.metrics.catalogue import Field, TextField, catalogue
from nodeagent.metrics.samples import Slice, WholeGpu
from nodeagent.metrics.sources import Number
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import SampleBatch
from tests.machine_load import stretched

POWER, SM_CLOCK, UTILISATION, FB_USED, ACTIVE = 155, 100, 203, 252, 1001
ALL_EACH_TIME = Intervals(slow=0.0, patience=30.0)


def rows(*numbers: int) -> list[Field]:
    return [row for row in catalogue().fields if row.id in numbers]


def whole(sampled: SampleBatch, number: int) -> dict[int, Number]:
    return {
        subject.entity.gpu.index: value
        for sample in sampled.samples.values()
        for subject, value in sample.values.get(number, ())
        if isinstance(subject.entity, WholeGpu)
    }


def parts(sampled: SampleBatch, number: int) -> dict[tuple[int, str, int], Number]:
    """A field of instances, by GPU index, profile and id."""
    return {
        (subject.entity.gpu.index, subject.entity.profile, subject.entity.id): value
        for sample in sampled.samples.values()
        for subject, value in sample.values.get(number, ())
        if isinstance(subject.entity, Slice)
    }


def succeeded(sampled: SampleBatch, name: str = "fast") -> dict[str, bool]:
    """How the readers of a tier fared, by GPU."""
    return {reader.gpu: reader.succeeded for reader in sampled.readers if reader.name == name}


def sampler_of(
    driver: Driver,
    fields: Iterable[Field],
    texts: Iterable[TextField] = (),
    *,
    intervals: Intervals | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Sampler:
    """A call that hangs is found out within a round, where no `intervals` are given."""
    quick = Intervals(patience=30, deadline=stretched(0.4))
    return Sampler(driver, fields, texts, intervals=intervals or quick, clock=clock)
