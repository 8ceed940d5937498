"""What the readers found, and what a round of the sampler delivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.catalogue import Tier
from nodeagent.metrics.samples import GpuIdentity, SampleSet, Subject


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What was read of a GPU: values by tier and, if wanted, health with `modes` by name.

    `at` (monotonic) and `seconds` say when the reading ended and how long it took. `problems` are
    calls that failed, which the GPU should have.
    """

    gpu: GpuIdentity
    whole: Subject
    at: float
    seconds: float
    slices: tuple[Subject, ...]
    samples: Mapping[Tier, SampleSet]
    health: GpuReading | None = None
    modes: Mapping[str, int] | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What was read of the node. `count` is that of the GPUs; the times are as of GPUs."""

    at: float
    seconds: float
    count: int
    sample: SampleSet
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device.

    `memory` in bytes, `multiprocessors` in percent of the GPU's time; None: not known.
    """

    pid: int
    memory: int | None = None
    multiprocessors: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The processes on a GPU, by the id of the GPU instance; None for those outside any."""

    gpu: str
    running: Mapping[int | None, tuple[Process, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """What came in since the last round.

    `samples` by reader: those that are new. `slices` are the instances that there are now, by the
    UUID of their GPU. `gpus` are health readings of the GPUs that were read; their modes (numbers
    by name) are in `modes` by UUID. `known`, `addresses` and `answer` are of the node, None where
    it was not read in this round. `at` is uptime in seconds.
    """

    at: float
    samples: Mapping[str, SampleSet]
    slices: Mapping[str, tuple[Subject, ...]]
    gone: tuple[str, ...]
    readers: tuple[ReaderState, ...]
    gpus: tuple[GpuReading, ...]
    modes: Mapping[str, Mapping[str, int]]
    known: frozenset[str] | None
    addresses: tuple[str, ...] | None
    answer: Answer | None
    problems: Mapping[str, tuple[str, ...]]
