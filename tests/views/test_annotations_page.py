import json
import re
from pathlib import Path
from typing import Any

from nodeagent.cluster.node_status import node_event
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.structs import replace
from nodeagent.views.conditions import HEALTHY, PARTITIONS_READY
from nodeagent.views.layout_facts import layout, layout_labels, topology
from nodeagent.views.status_annotation import status_text
from tests.views.example_node import (
    AT,
    BLOCKED,
    DAEMON,
    IN_SYNC,
    OBSERVED,
    PLAN,
    REJECTED,
    conditions_of,
    content_of,
)

PAGE = (Path(__file__).parents[2] / "docs/annotations.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def only_json(title: str) -> Any:
    (block,) = blocks(section(title), "json")
    return json.loads(block)


def test_the_plan_is_the_examples() -> None:
    assert blocks(PAGE, "yaml") == [PLAN]


def test_the_status_examples() -> None:
    shown, refused = map(json.loads, blocks(section("Annotation nodeagent.io/status"), "json"))
    assert shown == json.loads(status_text(content_of(IN_SYNC), AT))
    whole = content_of(REJECTED)
    assert refused == {key: whole[key] for key in refused}
    assert whole.keys() - refused.keys() == {"headline", "gpus", "mps"}
    explained = re.findall(r"`([a-zA-Z]+)", section("Annotation nodeagent.io/status"))
    assert {*shown, *whole, *shown["gpus"][0], *whole["problems"][0]} <= {*explained}


def test_the_conditions() -> None:
    rows = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
        for line in section("Conditions").splitlines()
        if line.startswith("| `") and line.count("|") == 5 and re.search(r"(True|False) \|", line)
    ]
    found = {
        (kind, condition.status, condition.reason, condition.message)
        for state in (IN_SYNC, REJECTED, BLOCKED)
        for kind, condition in conditions_of(state).items()
    }
    assert {*rows} == found
    assert {row[0] for row in rows} == {PARTITIONS_READY, HEALTHY}


def test_the_facts_for_schedulers() -> None:
    assert only_json("Annotation nodeagent.io/topology") == json.loads(topology(OBSERVED))
    assert only_json("Annotation nodeagent.io/layout") == json.loads(layout(OBSERVED, (DAEMON,)))
    (labels,) = blocks(section("Labels"), "text")
    assert dict(line.split("=") for line in labels.split()) == layout_labels(OBSERVED)


def test_the_events_are_those_of_the_node() -> None:
    named = re.findall(r"`([A-Z][A-Za-z]+)`", section("Events"))
    assert {*named} == {kind for kind in EventType if node_event(EventLog().add(kind, "m"))}


def test_the_message_to_wait_for() -> None:
    (waited,) = re.findall(r'grep -q "(.*\$want.*)"', PAGE)
    gone = replace(
        IN_SYNC, problems=(Problem(code=Code.SOURCE_MISSING, message="the plan file is gone"),)
    )
    for state in (IN_SYNC, gone):
        assert (
            waited.replace("$want", state.digest) in conditions_of(state)[PARTITIONS_READY].message
        )
