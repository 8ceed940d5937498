"""Reads what concerns the node and no single GPU, in the pool's own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodeagent.errors import DriverError, DriverUnavailable
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import call
from nodeagent.gpu.nvml_calls import ABSENT, member, number
from nodeagent.metrics.samples import Node, SampleSet, Subject, by_field
from nodeagent.metrics.sources import Source, SystemCall
from nodeagent.telemetry.fields import Plan
from nodeagent.telemetry.samples import NodeSample

_NODE = Subject(Node())


class NodeReader:
    """Remembers what the driver does not have."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._clock = clock
        self._refused: set[str] = set()

    def read(self) -> NodeSample:
        """Raises DriverError when the driver does not even count its GPUs."""
        began = self._clock()
        count = nvml.device_count()
        problems: list[str] = []
        found = []
        for row in self._plan.node:
            answer = self._ask(row.source, problems)
            value = None if answer is None else row.value(number(answer))
            if value is not None:
                found.append((row.id, _NODE, value))
        answers = ((text.id, self._ask(text.source, problems)) for text in self._plan.node_texts)
        texts = {text: str(answer) for text, answer in answers if answer}
        ended = self._clock()
        return NodeSample(
            ended, ended - began, count, SampleSet(by_field(found), texts), tuple(problems)
        )

    def _ask(self, source: Source, problems: list[str]) -> Any:
        if not isinstance(source, SystemCall) or source.function in self._refused:
            return None
        try:
            answer = call(source.function)
        except DriverUnavailable:
            raise
        except DriverError as error:
            if error.code in ABSENT:
                self._refused.add(source.function)
            else:
                problems.append(str(error))
            return None
        return member(answer, source.items[0]) if source.items else answer
