"""The row of the dashboard about claims of pods."""

from __future__ import annotations

from tools.dashboard.panels import HELD, NODE, Panel, Rows, graph


def _quantile(quantile: float, operation: str) -> str:
    series = f"nodeagent_claim_{operation}_duration_seconds_bucket{{{NODE}}}"
    return f"histogram_quantile({quantile}, sum by (le) (rate({series}[$__rate_interval])))"


CLAIM_ROWS: Rows = (
    (
        "Claims",
        (
            graph(
                "Claims of pods",
                f"sum by (phase) (nodeagent_claims{{{NODE}}})",
                "{{phase}}",
                stacked=True,
                about="Only of agents that serve claims. What waits was refused at least once.",
            ),
            graph(
                "Memory slices of claims",
                f"sum by (namespace) (nodeagent_claim_slices{{{HELD}}})",
                "{{namespace}}",
                stacked=True,
            ),
            Panel(
                "How long a claim takes",
                (
                    (_quantile(0.5, "prepare"), "prepare: half of them"),
                    (_quantile(0.95, "prepare"), "prepare: 95 %"),
                    (_quantile(0.95, "release"), "release: 95 %"),
                ),
                unit="s",
            ),
            graph(
                "Attempts that failed",
                "sum by (operation, reason) "
                f"(increase(nodeagent_claim_failures_total{{{NODE}}}[$__rate_interval]))",
                "{{operation}} {{reason}}",
                about="The kubelet repeats each every few seconds.",
            ),
        ),
    ),
)
