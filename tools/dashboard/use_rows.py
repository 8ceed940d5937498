"""The rows of the dashboard of use: who held GPUs, how much was used, and what the rest costs."""

from __future__ import annotations

from tools.dashboard.panels import Panel, Rows, figure, graph, table

# The records of rules.yaml: by namespace and workload, once a minute.
OF_CHOSEN = '{namespace=~"$namespace"}'
HELD = f"namespace_workload:nodeagent_gpus_held:rate5m{OF_CHOSEN}"
USED = f"namespace_workload:nodeagent_gpus_used:rate5m{OF_CHOSEN}"
ALL_HELD = "namespace_workload:nodeagent_gpus_held:rate5m"
SMALLER = 'nodeagent_advice_info{verdict="smaller", namespace=~"$namespace"}'
GPU_QUOTA = (
    'kube_resourcequota{{type="{}", namespace=~"$namespace", resource=~"'
    "requests[.](nvidia[.]com|deviceclass[.]resource[.]kubernetes[.]io)/.+"
    '|.+[.]deviceclass[.]resource[.]k8s[.]io/devices"}}'
)


def _hours(record: str, time: str = "$__range") -> str:
    return f"sum_over_time({record}[{time}]) / 60"


IDLE = f"({_hours(HELD)} - {_hours(USED)})"


def _sum(expression: str) -> str:
    return f"sum by (namespace) ({expression})"


def _by_namespace(title: str, expression: str, **more: str) -> Panel:
    return table(title, f"sort_desc({expression})", "namespace", "Value", width=8, **more)


def _by_workload(title: str, expression: str, **more: str) -> Panel:
    columns = ("namespace", "workload", "Value")
    return table(title, expression, *columns, width=8, height=10, **more)


def _share(time: str) -> str:
    everyone = f"scalar(sum(sum_over_time({ALL_HELD}[{time}])))"
    return f"{_sum(f'sum_over_time({HELD}[{time}])')} / {everyone}"


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
            figure("GPU-hours held", f"sum({_hours(HELD)})"),
            figure("GPU-hours used", f"sum({_hours(USED)})"),
            figure(
                "Used of what was held",
                f"sum({_hours(USED)}) / sum({_hours(HELD)})",
                unit="percentunit",
            ),
            figure("Cost of what was held", f"sum({_hours(HELD)}) * $price"),
            figure("Cost of what was idle", f"sum({IDLE}) * $price"),
            figure("GPUs held now", f"sum({HELD})"),
        ),
    ),
    (
        "By namespace",
        (
            graph("GPUs held", _sum(HELD), "{{namespace}}", stacked=True),
            graph(
                "GPUs held and idle",
                f"{_sum(HELD)} - {_sum(USED)}",
                "{{namespace}}",
                stacked=True,
            ),
            _by_namespace("GPU-hours held", _sum(_hours(HELD))),
            _by_namespace("GPU-hours used", _sum(_hours(USED))),
            _by_namespace("Cost of what was idle", f"{_sum(IDLE)} * $price"),
        ),
    ),
    (
        "Shares and quotas",
        (
            _by_namespace("Share of all GPU-hours, 7 days", _share("7d"), unit="percentunit"),
            _by_namespace("Share of all GPU-hours, 30 days", _share("30d"), unit="percentunit"),
            _by_namespace(
                "Used of what was held, 30 days",
                f"{_sum(_hours(USED, '30d'))} / {_sum(_hours(HELD, '30d'))}",
                unit="percentunit",
            ),
            *(
                table(
                    f"Part of its quota that a namespace had, {days} days",
                    _quota(f"{days}d"),
                    *("namespace", "resourcequota", "resource", "Value"),
                    unit="percentunit",
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
            _by_workload("GPU-hours held: the first twenty", f"topk(20, {_hours(HELD)})"),
            _by_workload("GPU-hours used: the first twenty", f"topk(20, {_hours(USED)})"),
            _by_workload(
                "Used of what was held: the last twenty",
                f"bottomk(20, {_hours(USED)} / ({_hours(HELD)} > 0))",
                unit="percentunit",
            ),
        ),
    ),
    (
        "Ten to shrink",
        (
            _by_workload("Idle GPU-hours", f"topk(10, {IDLE})"),
            _by_workload("What they cost", f"topk(10, {IDLE} * $price)"),
            table(
                "Idle for longest, now",
                f"topk(10, nodeagent_held_idle_seconds{OF_CHOSEN} > 0)",
                *("GPU_I_PROFILE", "namespace", "pod", "unit", "Value"),
                unit="s",
                width=8,
                height=10,
            ),
            table(
                "Smaller devices that would do",
                f"topk(10, max by (namespace, workload, container, device, advised) ({SMALLER})"
                f" * on (namespace, workload) group_left () {IDLE})",
                *("namespace", "workload", "container", "device", "advised", "Value"),
                width=24,
                about="As nodeagent advise has it, with the idle GPU-hours of the workload.",
            ),
        ),
    ),
)
