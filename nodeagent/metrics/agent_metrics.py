"""The agent's own metrics: a table of their names, types and labels.

The rows are data (`agent_metrics.json`). Their samples are made in the modules that know the
values. Labels of GPUs and instances have dcgm-exporter's names, so that the metrics of both can be
joined.
"""

import pkgutil
from bisect import bisect_left
from collections.abc import Iterable

from msgspec import json

from nodeagent.metrics.catalogue import Kind
from nodeagent.metrics.exposition import Family, block
from nodeagent.metrics.sources import Number
from nodeagent.structs import Struct


class AgentMetric(Struct, frozen=True, forbid_unknown_fields=True):
    """A metric of the agent's own. A label with an empty value is left out of a series."""

    name: str
    type: Kind
    help: str
    labels: tuple[str, ...] = ()


class AgentSample(Struct, frozen=True):
    """A value of one series; `metric` is a name, `labels` are in the order of that metric's."""

    metric: str
    value: Number
    labels: tuple[str, ...] = ()


AGENT_METRICS = json.decode(
    pkgutil.get_data("nodeagent.metrics", "agent_metrics.json") or b"", type=tuple[AgentMetric, ...]
)
_BY_NAME = {metric.name: metric for metric in AGENT_METRICS}


def agent_families(samples: Iterable[AgentSample]) -> list[Family]:
    """One family for each metric that has samples, in the order of the table.

    The first of two samples with equal labels counts.
    """
    series: dict[str, dict[str, Number]] = {}
    for sample in samples:
        named = zip(_BY_NAME[sample.metric].labels, sample.labels, strict=True)
        labels = block((name, value) for name, value in named if value)
        series.setdefault(sample.metric, {}).setdefault(labels, sample.value)
    return [
        Family(metric.name, metric.type, metric.help, found)
        for metric in AGENT_METRICS
        if (found := series.get(metric.name))
    ]


class Durations(Struct):
    """A histogram of seconds. `bounds` are the buckets' upper ends, the last one is infinite."""

    metric: str
    bounds: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    _counts: list[int] | None = None
    _sum: float = 0.0

    def add(self, seconds: float) -> None:
        counts = self._counts = self._counts or [0] * (len(self.bounds) + 1)
        counts[bisect_left(self.bounds, seconds)] += 1
        self._sum += seconds

    def family(self) -> Family:
        """The histogram; without series before the first duration."""
        metric = _BY_NAME[self.metric]
        if self._counts is None:
            return Family(metric.name, metric.type, metric.help, {})
        lines, total = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'_bucket{{le="{bound}"}} {total}')
        lines += [f"_sum {self._sum!r}", f"_count {total}"]
        return Family(metric.name, metric.type, metric.help, {}, suffixed=tuple(lines))
