"""Reads what is of the node and not of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nodeagent.errors import DriverError, DriverUnavailable
from nodeagent.gpu.nvml import Nvml
from nodeagent.gpu.nvml_calls import ABSENT, call, member, number
from nodeagent.metrics.catalogue import TextField
from nodeagent.metrics.conversion import converted
from nodeagent.metrics.samples import Node, SampleSet, Subject, by_field
from nodeagent.metrics.sources import SystemCall
from nodeagent.telemetry.plan import READ, Plan

_NODE = Subject(Node())


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What a look found. `count` is that of the GPUs; `at` (monotonic) and `seconds` as of GPUs."""

    at: float
    seconds: float
    count: int
    sample: SampleSet
    problems: tuple[str, ...]


class NodeReader:
    """Remembers what the driver does not have. Runs in the thread for what is of no GPU."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._clock = clock
        asks = [plan.whole[tier] for tier in READ]
        self._rows = [row for one in asks for row in one.system]
        self._texts = plan.node_texts
        self._refused: set[str] = set()

    def look(self, nvml: Nvml) -> NodeSample:
        """Raises DriverError when the driver does not even count its GPUs."""
        began = self._clock()
        count = nvml.device_count()
        problems: list[str] = []
        told = []
        for row, source in self._rows:
            answer = self._ask(source, problems)
            if answer is None:
                continue
            raw = number(member(answer, source.items[0]) if source.items else answer)
            value = converted(row.conversion, raw)
            if value is not None:
                told.append((row.id, _NODE, value))
        texts = {
            text.id: str(found) for text in self._texts if (found := self._text(text, problems))
        }
        ended = self._clock()
        sample = SampleSet(by_field(told), texts)
        return NodeSample(ended, ended - began, count, sample, tuple(problems))

    def _text(self, text: TextField, problems: list[str]) -> Any:
        return self._ask(text.source, problems) if isinstance(text.source, SystemCall) else None

    def _ask(self, source: SystemCall, problems: list[str]) -> Any:
        if source.function in self._refused:
            return None
        try:
            return call(source.function)
        except DriverUnavailable:
            raise
        except DriverError as error:
            if error.code in ABSENT:
                self._refused.add(source.function)
            else:
                problems.append(str(error))
        return None
