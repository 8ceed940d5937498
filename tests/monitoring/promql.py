"""What a PromQL expression asks for: its selectors, and the labels that it groups by.

It reads as much of the language as rules and dashboards here have, and refuses the rest. Whether
an expression is right, and what it gives, only Prometheus says: `promtool.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "bool", "offset"}
FUNCTIONS = {
    *("absent", "avg", "avg_over_time", "count", "histogram_quantile", "increase", "max", "min"),
    *("rate", "sum", "time", "vector"),
}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<name>[a-zA-Z_:][\w:]*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>={}()\[\],])
    )\s*""",
    re.VERBOSE,
)
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """`sign` is one of = != =~ !~."""

    label: str
    sign: str
    value: str

    def holds(self, labels: Mapping[str, str]) -> bool:
        """A label that is not there has an empty value, as in Prometheus."""
        found = labels.get(self.label, "")
        match self.sign:
            case "=":
                return found == self.value
            case "!=":
                return found != self.value
            case "=~":
                return re.fullmatch(self.value, found) is not None
            case _:
                return re.fullmatch(self.value, found) is None


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric's name, and what its labels have to be."""

    metric: str
    matchers: tuple[Matcher, ...] = ()

    def finds(self, series: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
        return any(
            name == self.metric and all(m.holds(labels) for m in self.matchers)
            for name, labels in series
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """An expression's selectors, and for each grouping its word and its labels."""

    selectors: tuple[Selector, ...]
    groupings: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def labels(self) -> frozenset[str]:
        matched = {m.label for s in self.selectors for m in s.matchers}
        return frozenset(matched.union(*(labels for _, labels in self.groupings)))


def filled(expression: str, variables: Iterable[str] = ()) -> str:
    """With Grafana's variables replaced: its own by durations, a dashboard's by everything."""
    for name, value in (*VARIABLES.items(), *((f"${name}", ".*") for name in variables)):
        expression = re.sub(re.escape(name) + r"\b", value, expression)
    return expression


def asked(expression: str) -> Asked:
    """What an expression asks for. Raises ValueError where it is not understood."""
    tokens = _tokens(expression)
    selectors: list[Selector] = []
    groupings: list[tuple[str, tuple[str, ...]]] = []
    if tokens.count("(") != tokens.count(")"):
        raise ValueError(f"brackets do not match: {expression}")
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token in GROUPING:
            end = tokens.index(")", at)
            groupings.append((token, tuple(t for t in tokens[at + 1 : end] if t != ",")))
            at = end + 1
        elif not re.match(r"[a-zA-Z_:]", token) or token in OPERATORS:
            continue
        elif following == "(" or following in GROUPING:
            if token not in FUNCTIONS:
                raise ValueError(f"not a function that is known here: {token}")
        else:
            matchers, at = _matchers(tokens, at)
            selectors.append(Selector(token, matchers))
            if at < len(tokens) and tokens[at] == "[":
                at = tokens.index("]", at) + 1
    return Asked(tuple(selectors), tuple(groupings))


def _matchers(tokens: list[str], at: int) -> tuple[tuple[Matcher, ...], int]:
    if at >= len(tokens) or tokens[at] != "{":
        return (), at
    end = tokens.index("}", at)
    inside = tokens[at + 1 : end]
    found = []
    for start in range(0, len(inside), 4):  # label, sign, text, comma
        label, sign, text = inside[start : start + 3]
        if sign not in {"=", "!=", "=~", "!~"} or text[0] != '"':
            raise ValueError(f"not a matcher: {label} {sign} {text}")
        found.append(Matcher(label, sign, re.sub(r"\\(.)", r"\1", text[1:-1])))
    return tuple(found), end + 1


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    while at < len(expression):
        met = _TOKEN.match(expression, at)
        if met is None:
            raise ValueError(f"not understood from here on: {expression[at:]}")
        tokens.append(met[0].strip())
        at = met.end()
    return tokens
