"""Alertmanager's inhibition rules, applied as it does."""

import re
from pathlib import Path
from typing import Any

import yaml

from nodeagent.health.table import GONE
from tests.monitoring.test_rules import ALERTS
from tools.make_prometheus_rule import RULES

Alert = dict[str, str]
INHIBIT: list[dict[str, Any]] = yaml.safe_load(
    RULES.with_name("inhibit-rules.yaml").read_text(encoding="utf-8")
)["inhibit_rules"]
NODE = {"instance": "a"}
GPU = NODE | {"gpu": "0", "UUID": "GPU-0"}


def _matches(alert: Alert, matchers: list[str]) -> bool:
    for matcher in matchers:
        found = re.fullmatch(r'(\w+)(=~|!~|=)"(.*)"', matcher)
        assert found
        name, operator, value = found.groups()
        pattern = re.escape(value) if operator == "=" else value
        if bool(re.fullmatch(pattern, alert.get(name, ""))) == (operator == "!~"):
            return False
    return True


def _sent(*alerts: Alert) -> list[Alert]:
    """Those that no other alert inhibits."""

    def inhibits(rule: dict[str, Any], source: Alert, target: Alert) -> bool:
        return (
            _matches(source, rule["source_matchers"])
            and _matches(target, rule["target_matchers"])
            and not _matches(source, rule["target_matchers"])
            and all(source.get(name, "") == target.get(name, "") for name in rule["equal"])
        )

    return [a for a in alerts if not any(inhibits(r, b, a) for r in INHIBIT for b in alerts)]


def _alert(name: str, labels: Alert, **more: str) -> Alert:
    assert name in {rule["alert"] for rule in ALERTS}
    return {"alertname": name, **labels, **more}


def test_of_a_lost_gpu_only_the_cause_is_sent() -> None:
    cause = _alert("NodeagentNodeNeedsReboot", GPU, cause="fallenOffBus")
    follow = [
        _alert("NodeagentNodeNeedsReboot", GPU, cause="gpuLost"),
        _alert("NodeagentReaderFails", GPU, reader="fast"),
        _alert("NodeagentSampleStale", GPU, reader="fast"),
        _alert("NodeagentMpsDaemonDown", GPU),
        _alert("NodeagentGpuUnknown", GPU, cause="unreadable"),
        _alert("NodeagentPlanBlocked", NODE),
        _alert("NodeagentPlanNotApplied", NODE),
    ]
    assert _sent(cause, *follow) == [cause]
    assert _sent(*follow) == follow[:1]  # without the kernel's log


def test_what_has_another_cause_is_sent() -> None:
    lost = _alert("NodeagentNodeNeedsReboot", GPU, cause="gpuLost")
    others = [
        _alert("NodeagentReaderFails", GPU | {"UUID": "GPU-1"}, reader="fast"),
        _alert("NodeagentPlanBlocked", {"instance": "b"}),
        _alert("NodeagentClaimStuck", NODE, phase="Waiting"),
        _alert("NodeagentNodeNeedsReboot", GPU | {"UUID": "GPU-2"}, cause="gpuMissing"),
    ]
    assert _sent(lost, *others) == [lost, *others]


def test_a_plan_that_is_blocked_is_reported_once() -> None:
    blocked = _alert("NodeagentPlanBlocked", NODE)
    assert _sent(blocked, _alert("NodeagentPlanNotApplied", NODE)) == [blocked]


def test_causes_and_alerts_are_there() -> None:
    text = Path(RULES.with_name("inhibit-rules.yaml")).read_text(encoding="utf-8")
    assert set(re.findall(r'\[?cause=~"(fallen[^"]*)"', text)) == {"|".join(sorted(GONE))}
    names = {rule["alert"] for rule in ALERTS}
    for pattern in re.findall(r'alertname=~?"([^"]*)"', text):
        for part in re.split(r"\|(?![^(]*\))", pattern):
            assert any(re.fullmatch(part, name) for name in names), part
