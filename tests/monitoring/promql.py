"""What a PromQL expression asks for: its selectors, and the labels that it groups by. Whether it is
right, and what it gives, only Prometheus says: `promtool.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Expr,
    Matcher,
    MatchOp,
    VectorSelector,
    parse,
    walk,
)

VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$price": "2"}


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric's name, and what its labels have to be."""

    metric: str
    matchers: tuple[Matcher, ...]

    def finds(self, series: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
        return any(
            name == self.metric and all(_holds(m, labels) for m in self.matchers)
            for name, labels in series
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """An expression's selectors, the labels of each grouping, and those of the first `by`."""

    selectors: tuple[Selector, ...]
    groupings: tuple[tuple[str, ...], ...]
    by: tuple[str, ...] | None

    @property
    def labels(self) -> frozenset[str]:
        matched = {m.name for s in self.selectors for m in s.matchers}
        return frozenset(matched.union(*self.groupings))


def _holds(matcher: Matcher, labels: Mapping[str, str]) -> bool:
    """A label that is not there has an empty value, as in Prometheus."""
    found = labels.get(matcher.name, "")
    match matcher.op:
        case MatchOp.Re | MatchOp.NotRe as op:
            return (re.fullmatch(matcher.value, found) is not None) is (op == MatchOp.Re)
        case op:
            return (found == matcher.value) is (op == MatchOp.Equal)


def filled(expression: str, variables: Iterable[str] = ()) -> str:
    """With Grafana's variables replaced: its own by durations, a dashboard's by everything."""
    for name, value in (*VARIABLES.items(), *((f"${name}", ".*") for name in variables)):
        expression = re.sub(re.escape(name) + r"\b", value, expression)
    return expression


def asked(expression: str) -> Asked:
    """What an expression asks for. Raises ValueError where it is not understood."""
    selectors: list[Selector] = []
    groupings: list[tuple[str, ...]] = []
    by: list[tuple[str, ...]] = []

    def look(part: Expr) -> None:
        match part:
            case VectorSelector(name=name, matchers=found):
                selectors.append(Selector(name or "", tuple(found.matchers)))
            case AggregateExpr(modifier=how) if how is not None:
                groupings.append(tuple(how.labels))
                by.extend(groupings[-1:] if how.type == AggModifierType.By else ())
            case BinaryExpr(modifier=how) if how is not None:
                groupings.append((*(how.matching.labels if how.matching else ()),))
                groupings.append((*(how.group_labels or ()),))

    walk(parse(expression), look)
    return Asked(tuple(selectors), tuple(groupings), by[0] if by else None)
