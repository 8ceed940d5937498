"""Prometheus' own evaluation of rules and expressions, where its promtool is installed."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.monitoring.scraped import scraped

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian's package prometheus has it)",
)


def promtool(*arguments: str | Path) -> str:
    """What it prints. Fails when it finds something wrong."""
    result = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def each_finds_something(expressions: Iterable[str], folder: Path) -> None:
    """Every expression gives at least one series, half an hour after all that is in `scraped`
    began and its counters to grow.
    """
    series = [{"series": s.text, "values": f"{s.value!r}+{_growth(s.name)}x60"} for s in scraped()]
    tests = [
        {
            "expr": f"count({expression}) > bool 0",
            "eval_time": "30m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expression in expressions
    ]
    path = folder / "expressions.json"  # JSON is YAML
    content = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    promtool("test", "rules", path)


def _growth(name: str) -> int:
    return int(name.endswith(("_total", "_bucket", "_count", "_sum")))
