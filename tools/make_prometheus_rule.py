"""Write manifests/monitoring/prometheus-rule.yaml from rules.yaml beside it.

python tools/make_prometheus_rule.py
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "manifests/monitoring"
RULES = FOLDER / "rules.yaml"
WRITTEN = FOLDER / "prometheus-rule.yaml"

HEAD = """\
# Written by tools/make_prometheus_rule.py; change rules.yaml, not this file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nodeagent
  namespace: nodeagent
  labels:
    app.kubernetes.io/name: nodeagent
    app.kubernetes.io/instance: nodeagent
    app.kubernetes.io/version: "0.1.0"
    app.kubernetes.io/component: monitoring
    app.kubernetes.io/part-of: nodeagent
    app.kubernetes.io/managed-by: kustomize
spec:
"""


def prometheus_rule() -> str:
    """The rules, comments included, as the operator wants them."""
    _, groups = RULES.read_text(encoding="utf-8").split("\ngroups:\n", maxsplit=1)
    lines = f"groups:\n{groups}".splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    WRITTEN.write_text(prometheus_rule(), encoding="utf-8")
