"""NVIDIA's own dashboard for dcgm-exporter works on what the agent exports, unmodified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.monitoring.promql import asked, filled
from tests.monitoring.promtool import each_finds_something, with_promtool
from tests.monitoring.scraped import scraped

DATA = Path(__file__).parents[1] / "data/monitoring/nvidia_dashboard.json"
CONTENT = json.loads(DATA.read_text(encoding="utf-8"))
QUERIES: dict[str, str] = CONTENT["queries"]
VARIABLES: dict[str, str] = CONTENT["variables"]
WITHOUT_GPM = {"GPU Utilization", "Tensor Core Utilization"}  # these need GPM: Hopper and newer


def _on(node: str) -> list[tuple[str, dict[str, str]]]:
    return [(s.name, dict(s.labels)) for s in scraped() if s.labels["instance"] == node]


@pytest.mark.parametrize("title", QUERIES)
@pytest.mark.parametrize("node", ["gpu-node-0", "gpu-node-1", "gpu-node-2"])
def test_each_selector_finds_series(title: str, node: str) -> None:
    """On an H100 with and without MIG each query has what it selects; on a T4 all but those that
    need GPM, with each GPU chosen alone.
    """
    expression = QUERIES[title].replace("$Hostname", node).replace("$gpu", "0")
    (selector,) = asked(expression).selectors
    expected = node != "gpu-node-2" or title not in WITHOUT_GPM
    assert selector.finds(_on(node)) is expected


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_variables_have_values(variable: str) -> None:
    """The lists at the top fill: their metric is there, with the label that they take."""
    inside = VARIABLES[variable].removeprefix("label_values(").removesuffix(")")
    expression, _, label = inside.rpartition(", ")
    assert label == variable
    (selector,) = asked(filled(expression, VARIABLES)).selectors
    values = {s.labels.get(label) for s in scraped() if selector.finds([(s.name, dict(s.labels))])}
    assert values == {"Hostname": {f"gpu-node-{n}" for n in range(3)}, "gpu": {"0"}}[variable]


def test_a_slice_has_a_line_of_its_own() -> None:
    """What the dashboard groups by instance and profile has a series for each instance, and none
    for the whole GPU, which would be drawn as one more.
    """
    (selector,) = asked(filled(QUERIES["GPU Framebuffer Mem Used"], VARIABLES)).selectors
    found = [labels for name, labels in _on("gpu-node-0") if selector.finds([(name, labels)])]
    assert sorted((f["GPU_I_ID"], f["GPU_I_PROFILE"]) for f in found) == [
        ("7", "1g.10gb"),
        ("8", "1g.10gb"),
    ]


@with_promtool
def test_prometheus_finds_something(tmp_path: Path) -> None:
    """Prometheus' own engine gives series for every query as a whole."""
    each_finds_something([filled(q, VARIABLES) for q in QUERIES.values()], tmp_path)
