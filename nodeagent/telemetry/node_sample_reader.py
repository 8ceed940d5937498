"""Reads what concerns the node and no single GPU, in the pool's own thread."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import Device
from nodeagent.metrics.samples import Node, SampleSet, Subject, by_field
from nodeagent.telemetry.fields import Plan, Rates, ReadTarget, read_rows, read_texts
from nodeagent.telemetry.nvml_reader import LastingAnswers, NvmlReader
from nodeagent.telemetry.samples import NodeSample

_NODE = Subject(Node())
_NO_HANDLE = Device(None)


class NodeSampleReader:
    """Remembers what the driver does not have."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._clock = clock
        self._rates = Rates(clock)
        self._standing = LastingAnswers()

    def read(self) -> NodeSample:
        """Raises DriverError when the driver does not even count its GPUs."""
        began = self._clock()
        count = nvml.device_count()
        reader = NvmlReader(_NO_HANDLE, self._standing)
        values = by_field(read_rows(self._plan.node, ReadTarget(reader, _NODE, self._rates)))
        texts = dict(read_texts(self._plan.node_texts, reader))
        reader.resolve_doubts()
        ended = self._clock()
        sample, problems = SampleSet(values, texts), tuple(reader.problems.values())
        return NodeSample(ended, ended - began, count, sample, problems)
