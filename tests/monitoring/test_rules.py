import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.runbook import runbook
from tests.monitoring.promql import asked
from tests.monitoring.promtool import promtool, with_promtool
from tests.monitoring.scraped import RECORDED, RECORDED_LABELS, result_labels, unknown
from tools.make_prometheus_rule import RULES, WRITTEN, prometheus_rule

CASES = Path(__file__).parents[1] / "data/monitoring/rules.yaml"
GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALL: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]
DURATION = r"([1-9]\d*)(s|m|h|d)"
TEMPLATE = re.compile(r" ((with )?\$labels\.\w+|\$value( \| humanize\w*)?|\.|end) ")


def test_both_forms_hold_the_same_rules() -> None:
    text = WRITTEN.read_text(encoding="utf-8")
    assert text == prometheus_rule()
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) == (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
    )
    assert document["spec"] == {"groups": GROUPS}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_rule_is_well_made(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Nodeagent[A-Z]\w+", rule["alert"])
    assert re.fullmatch(DURATION, rule.get("for", "1m"))
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    found = asked(rule["expr"])
    assert unknown(found) == set()
    reported = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", reported)) <= result_labels(found)
    for template in re.findall(r"{{(.*?)}}", reported):
        assert TEMPLATE.fullmatch(template), template
    assert reported.count("{{ with ") == reported.count("{{ end }}") >= reported.count("{{ . }}")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_rule_says_where_it_is_explained(rule: dict[str, Any]) -> None:
    command, _, code = rule["annotations"]["runbook"].rpartition(" explain ")
    assert command == "nodeagent"
    assert code in {rule["alert"], "{{ $labels.cause }}"}
    assert runbook().of(rule["alert"])


def test_names_are_unique() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_records_are_made_of_what_there_is() -> None:
    """Their label `workload` is made of others'."""
    records = {rule["record"]: asked(rule["expr"]) for rule in ALL if "record" in rule}
    assert set(records) == set(RECORDED)
    assert GROUPS[-1]["interval"] == "1m"  # what makes hours of a sum / 60
    for found in records.values():
        assert unknown(found) == {"workload"}
        assert set(found.by or ()) == RECORDED_LABELS


def test_each_alert_is_tested_both_ways() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    fires: set[str] = set()
    waits: set[str] = set()
    for case in cases:
        for check in case["promql_expr_test"]:
            (alert,) = re.findall(r'alertname="(\w+)"', check["expr"])
            (fires if check["exp_samples"] else waits).add(alert)
    assert fires == waits == {rule["alert"] for rule in ALERTS}


def test_the_page_lists_the_alerts() -> None:
    units = {"m": "min", "h": "h"}
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"`(Nodeagent\w+)` \(([^)]+)\)", page))
    reported = {
        rule["alert"]: f"{rule['for'][:-1]} {units[rule['for'][-1]]}"
        if "for" in rule
        else "at once"
        for rule in ALERTS
    }
    assert listed == reported


@with_promtool
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", RULES)


@with_promtool
def test_the_rules_fire_when_they_should() -> None:
    promtool("test", "rules", CASES)


@with_promtool
def test_the_records_are_hours_of_workloads() -> None:
    promtool("test", "rules", CASES.with_name("use.yaml"))
