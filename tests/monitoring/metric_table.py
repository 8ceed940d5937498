"""Which metrics there are and which labels each can have: what queries may ask for."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.metrics.agent_metrics import AGENT_METRICS
from nodeagent.metrics.catalogue import Kind
from nodeagent.metrics.selection import default_selection
from tests.monitoring.promql import Asked
from tests.monitoring.scraped import TARGET, labels_by_name

_HISTOGRAM = ("_bucket", "_sum", "_count")


def metric_table() -> Mapping[str, frozenset[str]]:
    """Labels by name: the agent's own as its tables say, the rest as series of them have them."""
    seen = labels_by_name()
    table = {wanted.name: seen[wanted.name] for wanted in default_selection().metrics}
    for metric in AGENT_METRICS:
        labels = frozenset((*metric.labels, *TARGET))
        if metric.type is Kind.HISTOGRAM:
            table |= {metric.name + suffix: labels | {"le"} for suffix in _HISTOGRAM}
        else:
            table[metric.name] = labels
    table["up"] = frozenset(TARGET)  # Prometheus' own
    return table


def unknown(asked: Asked) -> set[str]:
    """The metrics and labels of an expression that there are not."""
    table = metric_table()
    wrong = {s.metric for s in asked.selectors if s.metric not in table}
    known: frozenset[str] = frozenset()
    for selector in asked.selectors:
        labels = table.get(selector.metric, frozenset())
        known |= labels
        wrong |= {
            f"{selector.metric}.{m.label}" for m in selector.matchers if m.label not in labels
        }
    return wrong | {
        label for _, labels in asked.groupings for label in labels if label not in known
    }


def result_labels(asked: Asked) -> frozenset[str]:
    """The labels that a result can have: those it is grouped by, else all of its metrics'."""
    for word, labels in asked.groupings:
        if word == "by":
            return frozenset(labels)
    table = metric_table()
    return frozenset().union(*(table[s.metric] for s in asked.selectors))
