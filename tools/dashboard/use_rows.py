"""The rows of the dashboard of use: who held GPUs, how much was used, and what the rest costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.dashboard.panels import Panel, Rows, by_namespace, figure, graph, table

# The records of rules.yaml: by namespace and workload, once a minute.
OF_CHOSEN = '{namespace=~"$namespace"}'
HELD = f"namespace_workload:nodeagent_gpus_held:rate5m{OF_CHOSEN}"
USED = f"namespace_workload:nodeagent_gpus_used:rate5m{OF_CHOSEN}"
IDLE = f"namespace_workload:nodeagent_gpus_idle:rate5m{OF_CHOSEN}"
ALL_HELD = "namespace_workload:nodeagent_gpus_held:rate5m"
SMALLER = (
    "max by (namespace, workload, container, device, advised) "
    '(nodeagent_advice_info{verdict="smaller", namespace=~"$namespace"})'
)
GPU_QUOTA = (
    'kube_resourcequota{{type="{}", namespace=~"$namespace", resource=~"'
    "requests[.](nvidia[.]com|deviceclass[.]resource[.]kubernetes[.]io)/.+"
    '|.+[.]deviceclass[.]resource[.]k8s[.]io/devices"}}'
)


# How tables and figures show these.
HOURS: dict[str, Any] = {"unit": "locale", "decimals": 1, "value": "GPU-hours"}
COST: dict[str, Any] = {"unit": "locale", "decimals": 2, "value": "cost"}
SHARE: dict[str, Any] = {"unit": "percentunit", "value": "share"}


def _hours(record: str, time: str = "$__range") -> str:
    return f"sum_over_time({record}[{time}]) / 60"


def _used(group: Callable[[str], str], time: str = "$__range") -> str:
    """The part that was used of what was held and measured."""
    used, idle = group(_hours(USED, time)), group(_hours(IDLE, time))
    return f"{used} / ({used} + {idle})"


def _by_namespace(title: str, expression: str, **more: Any) -> Panel:
    return table(title, f"sort_desc({expression})", "namespace", "Value", width=8, **more)


def _by_workload(title: str, expression: str, **more: Any) -> Panel:
    columns = ("namespace", "workload", "Value")
    return table(title, expression, *columns, **{"width": 8, "height": 10, **more})


def _share(time: str) -> str:
    everyone = f"scalar(sum(sum_over_time({ALL_HELD}[{time}])))"
    return f"{by_namespace(f'sum_over_time({HELD}[{time}])')} / {everyone}"


def _quota(time: str) -> str:
    by = "sum by (namespace, resourcequota, resource)"
    used, hard = (
        f"{by} (avg_over_time({GPU_QUOTA.format(kind)}[{time}]))" for kind in ("used", "hard")
    )
    return f"sort_desc({used} / ({hard} > 0))"


USE_ROWS: Rows = (
    (
        "Together",
        (
            figure("GPU-hours held", f"sum({_hours(HELD)})", **HOURS),
            figure("GPU-hours used", f"sum({_hours(USED)})", **HOURS),
            figure(
                "GPU-hours not measured",
                f"sum({_hours(HELD)}) - (sum({_hours(USED)} + {_hours(IDLE)}) or vector(0))",
                **HOURS,
                about="Held where the driver says no activity: neither used nor idle.",
            ),
            figure("Used of what was measured", _used("sum({})".format), unit="percentunit"),
            figure("Cost of what was held", f"sum({_hours(HELD)}) * $price", **COST),
            figure("Cost of what was idle", f"sum({_hours(IDLE)}) * $price", **COST),
        ),
    ),
    (
        "By namespace",
        (
            graph("GPUs held", by_namespace(HELD), "{{namespace}}", stacked=True),
            graph("GPUs held and idle", by_namespace(IDLE), "{{namespace}}", stacked=True),
            _by_namespace("GPU-hours held", by_namespace(_hours(HELD)), **HOURS),
            _by_namespace("GPU-hours used", by_namespace(_hours(USED)), **HOURS),
            _by_namespace(
                "Cost of what was idle", f"{by_namespace(_hours(IDLE))} * $price", **COST
            ),
        ),
    ),
    (
        "Shares and quotas",
        (
            _by_namespace("Share of all GPU-hours, 7 days", _share("7d"), **SHARE),
            _by_namespace("Share of all GPU-hours, 30 days", _share("30d"), **SHARE),
            _by_namespace(
                "Used of what was measured, 30 days", _used(by_namespace, "30d"), **SHARE
            ),
            *(
                table(
                    f"Part of its quota that a namespace had, {days} days",
                    _quota(f"{days}d"),
                    *("namespace", "resourcequota", "resource", "Value"),
                    **SHARE,
                    width=12,
                    about="On average. Needs kube-state-metrics.",
                )
                for days in (7, 30)
            ),
        ),
    ),
    (
        "By workload",
        (
            _by_workload("GPU-hours held: the first twenty", f"topk(20, {_hours(HELD)})", **HOURS),
            _by_workload("GPU-hours used: the first twenty", f"topk(20, {_hours(USED)})", **HOURS),
            _by_workload(
                "Used of what was measured: the last twenty",
                f"bottomk(20, {_used('({})'.format)})",
                **SHARE,
            ),
        ),
    ),
    (
        "Ten to shrink",
        (
            _by_workload("Idle GPU-hours", f"topk(10, {_hours(IDLE)})", **HOURS, width=12),
            _by_workload("What they cost", f"topk(10, {_hours(IDLE)} * $price)", **COST, width=12),
            table(
                "Smaller devices that would do",
                # Also of a workload whose name the records do not have.
                f"topk(10, {SMALLER} * on (namespace, workload) group_left () {_hours(IDLE)}"
                f" or {SMALLER} * 0)",
                *("namespace", "workload", "container", "device", "advised", "Value"),
                **{**HOURS, "value": "idle GPU-hours"},
                width=24,
                about="As nodeagent advise has it, with the idle GPU-hours of the workload.",
            ),
            table(
                "Idle for longest, now",
                f"topk(10, nodeagent_held_idle_seconds{OF_CHOSEN} > 0)",
                *("instance", "gpu", "GPU_I_PROFILE", "namespace", "pod", "unit", "Value"),
                unit="s",
                value="idle for",
                width=24,
            ),
        ),
    ),
)
