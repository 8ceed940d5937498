import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.promql import asked, filled
from tests.monitoring.promtool import each_finds_something, with_promtool
from tests.monitoring.scraped import result_labels, scraped, unknown
from tools.make_dashboard import DASHBOARD, USE, dashboard, use_dashboard

CONTENT: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
USE_CONTENT: dict[str, Any] = json.loads(USE.read_text(encoding="utf-8"))
CONTENTS = (CONTENT, USE_CONTENT)
PANELS: list[dict[str, Any]] = [p for c in CONTENTS for p in c["panels"] if p["type"] != "row"]
VARIABLES = {v["name"]: v for v in CONTENT["templating"]["list"]}
QUERIES = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]


def test_the_file_is_the_one_that_is_written() -> None:
    assert DASHBOARD.read_text(encoding="utf-8") == dashboard()
    assert USE.read_text(encoding="utf-8") == use_dashboard()


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_asks_for_what_there_is(target: dict[str, Any]) -> None:
    expression = filled(target["expr"], VARIABLES)
    assert "$" not in expression
    found = asked(expression)
    assert unknown(found) == set()
    legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert legend <= result_labels(found)
    series = [(s.name, s.labels) for s in scraped()]
    for selector in found.selectors:
        assert selector.finds(series), selector


def test_columns_of_tables_are_labels() -> None:
    for panel in PANELS:
        if panel["type"] == "table":
            (target,) = panel["targets"]
            include, order = (t["options"] for t in panel["transformations"])
            columns = include["include"]["names"]
            headers = {order["renameByName"].get(name, name) for name in columns}
            chosen = [o["matcher"]["options"] for o in panel["fieldConfig"]["overrides"]]
            assert {*chosen, *(o["displayName"] for o in panel["options"]["sortBy"])} <= headers
            known = result_labels(asked(filled(target["expr"], VARIABLES))) | {"Value"}
            assert set(columns) <= known, panel["title"]


def test_the_variables() -> None:
    """Data source, node, GPU, slice and namespace can be chosen, each narrowed by those before it;
    everything includes series without the label.
    """
    source, *others = CONTENT["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert [v["name"] for v in others] == ["node", "gpu", "slice", "namespace"]
    *_, namespace, price = USE_CONTENT["templating"]["list"]
    assert (price["name"], price["type"]) == ("price", "textbox")
    for variable in (*others, namespace):
        assert (variable["allValue"], variable["includeAll"]) == (".*", True)
        met = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert met
        found = asked(filled(met[1], VARIABLES))
        assert unknown(found) == set()
        assert met[2] in result_labels(found)


def test_every_query_heeds_a_variable_and_the_data_source() -> None:
    for content, label in zip(CONTENTS, ("instance", "namespace"), strict=True):
        for panel in (p for p in content["panels"] if p["type"] != "row"):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for target in panel["targets"]:
                matchers = asked(filled(target["expr"], VARIABLES)).selectors[0].matchers
                assert label in {m.name for m in matchers}, panel["title"]


def test_the_page_lists_the_rows() -> None:
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")
    for heading, content in zip(("## Dashboard", "## Who uses what"), CONTENTS, strict=True):
        section = page.split(heading)[1].split("## ")[0]
        listed = re.findall(r"^\| ([A-Z][\w ]+) \|", section, re.MULTILINE)
        assert listed == [p["title"] for p in content["panels"] if p["type"] == "row"]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content["uid"])
def test_panels_do_not_overlap(content: dict[str, Any]) -> None:
    panels = content["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    for one, other in itertools.combinations([p["gridPos"] for p in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


@with_promtool
def test_prometheus_finds_something(tmp_path: Path) -> None:
    """Prometheus' own engine gives series for every query as a whole."""
    queries = [filled(t["expr"], VARIABLES) for p in PANELS for t in p["targets"]]
    each_finds_something(queries, tmp_path)


# --- NVIDIA's own, for dcgm-exporter ------------------------------------------------------------

DATA = Path(__file__).parents[1] / "data/monitoring/nvidia_dashboard.json"
NVIDIAS_CONTENT = json.loads(DATA.read_text(encoding="utf-8"))
NVIDIAS: dict[str, str] = NVIDIAS_CONTENT["queries"]
NVIDIAS_VARIABLES: dict[str, str] = NVIDIAS_CONTENT["variables"]
WITHOUT_GPM = {"GPU Utilization", "Tensor Core Utilization"}  # these need GPM: Hopper and newer


def _on(node: str) -> list[tuple[str, dict[str, str]]]:
    return [(s.name, dict(s.labels)) for s in scraped() if s.labels.get("instance") == node]


@pytest.mark.parametrize("title", NVIDIAS)
@pytest.mark.parametrize("node", ["gpu-node-0", "gpu-node-1", "gpu-node-2"])
def test_each_selector_finds_series(title: str, node: str) -> None:
    """On an H100 with and without MIG each query has what it selects; on a T4 all but those that
    need GPM, with each GPU chosen alone.
    """
    expression = NVIDIAS[title].replace("$Hostname", node).replace("$gpu", "0")
    (selector,) = asked(expression).selectors
    expected = node != "gpu-node-2" or title not in WITHOUT_GPM
    assert selector.finds(_on(node)) is expected


@pytest.mark.parametrize("variable", NVIDIAS_VARIABLES)
def test_the_variables_have_values(variable: str) -> None:
    inside = NVIDIAS_VARIABLES[variable].removeprefix("label_values(").removesuffix(")")
    expression, _, label = inside.rpartition(", ")
    assert label == variable
    (selector,) = asked(filled(expression, NVIDIAS_VARIABLES)).selectors
    values = {s.labels.get(label) for s in scraped() if selector.finds([(s.name, dict(s.labels))])}
    assert values == {"Hostname": {f"gpu-node-{n}" for n in range(3)}, "gpu": {"0"}}[variable]


def test_a_slice_has_a_line_of_its_own() -> None:
    """What the dashboard groups by instance and profile has a series for each instance, and none
    for the whole GPU, which would be drawn as one more.
    """
    (selector,) = asked(filled(NVIDIAS["GPU Framebuffer Mem Used"], NVIDIAS_VARIABLES)).selectors
    found = [labels for name, labels in _on("gpu-node-0") if selector.finds([(name, labels)])]
    assert sorted((f["GPU_I_ID"], f["GPU_I_PROFILE"]) for f in found) == [
        ("7", "1g.10gb"),
        ("8", "1g.10gb"),
    ]


@with_promtool
def test_prometheus_finds_something_for_nvidias(tmp_path: Path) -> None:
    each_finds_something([filled(q, NVIDIAS_VARIABLES) for q in NVIDIAS.values()], tmp_path)
