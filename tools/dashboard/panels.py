"""What the dashboard's rows are made of: panels, selectors of series, legends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# What the variables at the top choose. All of them may be everything, so that series without the
# label are found too.
NODE = 'instance=~"$node"'
GPU = f'{NODE}, gpu=~"$gpu"'
SLICE = f'{GPU}, GPU_I_ID=~"$slice"'
HELD = f'{SLICE}, namespace=~"$namespace"'
HOLDER = f'{NODE}, namespace=~"$namespace"'
# Every program has metrics that begin with process_; this keeps the agent's.
OF_AGENT = "and on (job, instance) nodeagent_build_info"

NAME = "{{instance}} GPU {{gpu}}"
PART = f"{NAME} {{{{GPU_I_PROFILE}}}} {{{{GPU_I_ID}}}}"
POD = f"{PART} {{{{pod}}}}"
CLIENT = f"{PART} {{{{share}}}} {{{{pod}}}} {{{{pid}}}}"


def by_namespace(expression: str) -> str:
    """The sums; none has an empty namespace, which a legend cannot show."""
    summed = f"sum by (namespace) ({expression})"
    return f'label_replace({summed}, "namespace", "no namespace", "namespace", "")'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: expressions with their legends, and how Grafana shows them."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    decimals: int | None = None  # as many as fit
    type: str = "timeseries"
    width: int = 12
    height: int = 8
    about: str = ""
    stacked: bool = False
    limits: tuple[float | None, float | None] = (0, None)
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)
    values: dict[str, tuple[str, str]] = field(default_factory=dict)  # value: text, colour
    columns: tuple[str, ...] = ()  # of a table, in this order
    value: str = "Value"  # what the header of a table's value says


def graph(title: str, expression: str, legend: str = "", **more: Any) -> Panel:
    """A curve over time for each series; `more` are fields of Panel."""
    return Panel(title, ((expression, legend),), **more)


def figure(title: str, expression: str, **more: Any) -> Panel:
    """One number, small, and without a colour unless `steps` give it one."""
    return graph(title, expression, type="stat", width=4, height=4, **{"steps": PLAIN, **more})


def table(title: str, expression: str, *columns: str, **more: Any) -> Panel:
    """A row for each series that there is now."""
    return graph(title, expression, type="table", columns=columns, **more)


def states(title: str, expression: str, legend: str, **more: Any) -> Panel:
    """A band for each series, coloured by its value."""
    return graph(title, expression, legend, type="state-timeline", **more)


Rows = tuple[tuple[str, tuple[Panel, ...]], ...]  # titles and what is below them

PLAIN = (("text", None),)
BAD_ABOVE_0 = (("green", None), ("red", 1.0))
YES_NO = {"1": ("yes", "green"), "0": ("no", "red")}
