"""What a round of the sampler brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.health.readings import Answer, GpuReading
from nodeagent.metrics.agent_metrics import ReaderState
from nodeagent.metrics.samples import SampleSet, Subject


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """What came in since the last round.

    `samples` by reader: those that are new. `slices` are the instances that there are now, by the
    UUID of their GPU. `gpus` are health readings of the GPUs that were asked; their modes (numbers
    by name) are in `modes` by UUID. `known`, `addresses` and `answer` are of the node, None where
    it was not asked in this round. `at` is uptime in seconds.
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
