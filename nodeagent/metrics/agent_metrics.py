"""What the agent says of itself in metrics: its steps and rounds, its readers, what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.metrics import own
from nodeagent.metrics.downtime import out_of_use
from nodeagent.metrics.exposition import Family
from nodeagent.metrics.holding import Held, Holder
from nodeagent.metrics.own import Durations, OwnSample, own_families
from nodeagent.plan.plan import NodeOutcome, StepReport
from nodeagent.views.plan_report import step_kind


@dataclass(slots=True)
class Work:
    """What the agent has done since it was started."""

    _steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    _out_of_use: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _rounds: Durations = field(default_factory=lambda: Durations(own.RECONCILE_DURATION))

    def done(self, outcome: NodeOutcome, seconds: float) -> None:
        """A round took `seconds` and came to this, the way back included."""
        self._rounds.add(seconds)
        for gpu in outcome.gpus:
            self._count(gpu.steps)
            self._count(gpu.restored)
            before = gpu.plan.before
            for slot, lost in out_of_use(gpu).items():
                key = (str(before.index), before.uuid, str(slot))
                self._out_of_use[key] = self._out_of_use.get(key, 0.0) + lost

    def looked(self, seconds: float) -> None:
        """A round found nothing to do."""
        self._rounds.add(seconds)

    def _count(self, reports: Iterable[StepReport]) -> None:
        for report in reports:
            self._steps[step_kind(report.step), report.result.value] += 1

    def families(self) -> list[Family]:
        """Steps by kind and result, rounds by duration, slices by what changes took of them."""
        samples = [OwnSample(own.STEPS, n, key) for key, n in sorted(self._steps.items())]
        lost = sorted(self._out_of_use.items())
        samples += [OwnSample(own.MIG_OUT_OF_USE, seconds, key) for key, seconds in lost]
        return [*own_families(samples), self._rounds.family()]


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader as it is now. `age` and `duration` in seconds, None before the first attempt that
    went well, and before the first at all. `gpu` and `uuid` where it reads a single GPU.
    """

    name: str
    succeeded: bool
    age: float | None = None
    duration: float | None = None
    gpu: str = ""
    uuid: str = ""


def reader_samples(readers: Iterable[ReaderState]) -> Iterator[OwnSample]:
    """How old each reader's values are, and whether it still gets any."""
    for reader in readers:
        labels = (reader.name, reader.gpu, reader.uuid)
        if reader.age is not None:
            yield OwnSample(own.SAMPLE_AGE, reader.age, labels)
        yield OwnSample(own.READER_SUCCESS, int(reader.succeeded), labels)
        if reader.duration is not None:
            yield OwnSample(own.READER_DURATION, reader.duration, labels)


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What the agent's process costs: seconds, bytes, counts; `started` in Unix time."""

    cpu_seconds: float
    resident: int
    virtual: int
    open_files: int
    most_files: int
    started: float


def process_samples(cost: ProcessCost) -> Iterator[OwnSample]:
    """Under the names that every Prometheus client uses."""
    yield OwnSample(own.CPU_SECONDS, cost.cpu_seconds)
    yield OwnSample(own.RESIDENT_MEMORY, cost.resident)
    yield OwnSample(own.VIRTUAL_MEMORY, cost.virtual)
    yield OwnSample(own.OPEN_FILES, cost.open_files)
    yield OwnSample(own.MOST_FILES, cost.most_files)
    yield OwnSample(own.START_TIME, cost.started)


def build_sample(version: str, python: str) -> OwnSample:
    """Which agent runs."""
    return OwnSample(own.BUILD_INFO, 1, (version, python))


def refusal_samples(counts: Mapping[tuple[str, str], int]) -> Iterator[OwnSample]:
    """What was refused, by listener and reason."""
    for key, count in sorted(counts.items()):
        yield OwnSample(own.HTTP_REFUSED, count, key)


def held_samples(held: Mapping[Holder, Held]) -> Iterator[OwnSample]:
    """What each holder held and used."""
    for holder, time in held.items():
        labels = (holder.container, holder.namespace, holder.pod, holder.unit, holder.user)
        yield OwnSample(own.GPU_SECONDS_HELD, time.gpu_seconds, labels)
        yield OwnSample(own.GPU_SECONDS_USED, time.gpu_seconds_used, labels)
        yield OwnSample(own.SLICE_SECONDS_HELD, time.slice_seconds, labels)
        yield OwnSample(own.SLICE_SECONDS_USED, time.slice_seconds_used, labels)
